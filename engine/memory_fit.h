/* Whether a run's planned bytes fit, before anything is allocated; and if not, which settings would. */
#ifndef TR_ENGINE_MEMORY_FIT_H
#define TR_ENGINE_MEMORY_FIT_H

#include "engine/run_int.h"

/* Collective: compares each rank's plan with memory.limit_gb, the process's address-space limit and its share of the node's available memory, or its share of what is
 * free on its GPU, where 512 MiB are kept back for the vendor's libraries, 1024 MiB where there are stages. TR_ERR_MEMORY on all
 * ranks with the table of the rank that is shortest, the shortfall and settings that would fit. */
tr_status tr_memory_fit_check(tr_run *run);

/* Writes which settings, each with the bytes it comes to, would let every rank fit in limit bytes, or what else to do. cfg is resolved and not changed. */
void tr_memory_fit_remedies(const tr_config *cfg, tr_device *device, size_t limit, char *text,
                            size_t text_bytes);

#endif
