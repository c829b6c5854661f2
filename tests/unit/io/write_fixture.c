/* write_fixture FOLDER LEVEL whole|other: the small checkpoint of checkpoint_fixture.h, for tests of
 * programs that read checkpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/io/checkpoint_fixture.h"

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: write_fixture FOLDER LEVEL whole|other\n");
        return 2;
    }
    fixture_checkpoint_write(argv[1], atoi(argv[2]),
                             strcmp(argv[3], "other") == 0 ? FIXTURE_OTHER : FIXTURE_WHOLE);
    return 0;
}
