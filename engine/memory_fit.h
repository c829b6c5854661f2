/* Whether a run's planned bytes fit, before anything is allocated; and if not, which settings would. */
#ifndef TR_ENGINE_MEMORY_FIT_H
#define TR_ENGINE_MEMORY_FIT_H

#include "engine/run_int.h"

/* Collective: compares each rank's plan with memory.limit_gb, the process's address-space limit and its share of the node's available memory. TR_ERR_MEMORY on all
 * ranks with the table of the rank that is shortest, the shortfall and settings that would fit. */
tr_status tr_memory_fit_check(tr_run *run);

#endif
