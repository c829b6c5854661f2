/* A slow network of known speed under the groups of libtrine.
 *
 * A program that links slow_link.c through SLOW_LINK_OPTIONS of CMakeLists.txt (the linker puts wrapping tables in place of the two
 * transports) runs all its groups over it. An operation that a rule names is on the wire for the rule's time from the moment when the
 * last of its ranks has posted it, and not before the one in front of it (the collectives of a group, or one direction of a channel) is
 * off the wire; no rank sees it complete earlier. What the ranks post meanwhile, and what they compute, goes on. Nobody spins: a wait for
 * such an operation tests and sleeps briefly, as over MPI. Integer reductions and broadcasts are not slowed.
 *
 * A rule may make the time random, which brings the ranks out of step in ever new ways, and may fill memory that holds nothing with NaNs:
 * a destination from the post on, a source from the end on. Whoever reads before the result is there, or after giving it away, sees them.
 *
 * The ranks share one machine, whose clock they share; they publish when they posted in memory of their own. */
#ifndef TESTS_PARALLEL_SLOW_LINK_H
#define TESTS_PARALLEL_SLOW_LINK_H

#include "parallel/group_int.h"

enum { SLOW_ANY_KIND = -1, SLOW_MAX_RULES = 8 };

/* Slows the operations of a kind (tr_op_kind, or SLOW_ANY_KIND) of the groups called `group` (NULL: of all). Of several rules for an
 * operation the first counts. */
typedef struct slow_rule {
    const char *group;
    int kind;
    double seconds; /* of one operation */
    double
        seconds_per_byte; /* more, for each byte of its result (of a reduce_scatter: of all ranks' results) */
    double random_seconds; /* more, at most: by chance, for each rank and operation anew */
    bool poison;           /* the destination, when it is posted; it may be no part of the source */
    bool
        spend; /* the source, when no rank reads it any more: for those that are buffers, and are written anew for each operation */
} slow_rule;

/* Of this rank, of the operations that rules named since slow_link_begin. */
typedef struct slow_totals {
    int64_t num_operations;
    double wire_seconds;   /* on the wire */
    double late_seconds;   /* from there until this rank had finished them */
    double latest_seconds; /* the largest of these */
} slow_totals;

/* Sets the rules (0: none) for the runs opened from here on. Collective over MPI_COMM_WORLD, while no group is open. */
void slow_link_begin(const slow_rule *rules, int num_rules);
slow_totals slow_link_totals(const char *group);
/* Once, before MPI_Finalize. */
void slow_link_end(void);

#endif
