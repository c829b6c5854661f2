/* What profilers would be told of ranges, for tests. */
#ifndef TR_TESTS_SIM_RANGE_H
#define TR_TESTS_SIM_RANGE_H

#include <stddef.h>

/* From here on ranges are added to text[bytes], which is emptied: "outer(inner()other())". NULL: no longer. */
void cudasim_ranges_record(char *text, size_t bytes);
/* Open ranges. */
int cudasim_ranges_depth(void);

#endif
