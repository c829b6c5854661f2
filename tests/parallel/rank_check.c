#include "tests/parallel/rank_check.h"

#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

void fail_here(const char *what, const char *file, int line)
{
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    fprintf(stderr, "rank %d of %d, %s:%d: %s\n", rank, size, file, line, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}
