/* MPI-IO while servers come and leave: 4 ranks write a shared file together and read it back, every byte checked, until a
 * file says stop.
 *
 *     mpicc.mpich -O2 -Wall mpi_grows.c -o mpi_grows && mpiexec.mpich -n 4 ./mpi_grows DIR STOP
 *
 * The program makes DIR/held, which stays open from the first round to the last, and DIR/anew, which is opened for each
 * round, and ends when there is a file STOP. In each round, the ranks write one segment of both files by
 * MPI_File_write_at_all, each its own blocks in turn; then each reads, by MPI_File_read_at_all, the blocks of the next rank in
 * that segment, and those of the rank after that in a segment of an earlier round. Each round writes other bytes, so that old
 * ones are noticed. A mismatch, or an error, is told on standard error and ends all ranks with status 1.
 *
 * Rank 0 says how far it is in DIR/rounds, which is replaced each time, and at the end:
 * "ok ROUNDS rounds, WRITTEN bytes written, READ bytes read and verified".
 */
#include "ranks.h"
#include <errno.h>

enum { SEGMENTS = 8, BLOCK = 65537, BLOCKS = 16, PART = BLOCK * BLOCKS, SEGMENT = RANKS * PART };

static char paths[4][4096];
static unsigned char data[PART];
static uint64_t written, verified;
/* The round in which each segment was written last. */
static uint32_t rounds[SEGMENTS];

static uint64_t offset_of(int segment, int who, int block)
{
    return (uint64_t)segment * SEGMENT + ((uint64_t)block * RANKS + (uint64_t)who) * BLOCK;
}

static void write_segment(const char *what, MPI_File file, int segment, uint32_t seed)
{
    MPI_Status status;
    view(file, (MPI_Offset)segment * SEGMENT, rank, BLOCK, BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        fill(data + (size_t)i * BLOCK, offset_of(segment, rank, i), BLOCK, seed);
    MUST(MPI_File_write_at_all(file, 0, data, PART, MPI_BYTE, &status));
    complete(what, &status, PART);
    written += PART;
    MUST(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void read_segment(const char *what, MPI_File file, int segment, int who, uint32_t seed)
{
    MPI_Status status;
    memset(data, 0xee, PART);
    view(file, (MPI_Offset)segment * SEGMENT, who, BLOCK, BLOCKS);
    MUST(MPI_File_read_at_all(file, 0, data, PART, MPI_BYTE, &status));
    complete(what, &status, PART);
    for (int i = 0; i < BLOCKS; i++)
        check(what, data + (size_t)i * BLOCK, offset_of(segment, who, i), BLOCK, seed);
    verified += PART;
}

static void work(const char *what, MPI_File file, uint32_t round, uint32_t kind)
{
    int segment = (int)(round % SEGMENTS), earlier = (int)(round * 5 % SEGMENTS);
    write_segment(what, file, segment, 2 * round + kind);
    read_segment(what, file, segment, (rank + 1) % RANKS, 2 * round + kind);
    if (earlier != segment && rounds[earlier] > 0)
        read_segment(what, file, earlier, (rank + 2) % RANKS, 2 * rounds[earlier] + kind);
}

static void say_round(uint32_t round)
{
    FILE *file = fopen(paths[2], "w");
    if (file == NULL || fprintf(file, "%u\n", round) < 0 || fclose(file) != 0 || rename(paths[2], paths[3]) != 0)
        fail("%s: %s", paths[3], strerror(errno));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 3 || ranks != RANKS) {
        if (rank == 0)
            fprintf(stderr, "usage: mpiexec -n %d %s DIRECTORY STOP\n", RANKS, argv[0]);
        MPI_Finalize();
        return 2;
    }
    static const char *const names[] = { "held", "anew", "rounds.new", "rounds" };
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", argv[1], names[i]);
    MPI_File held, anew;
    MUST(MPI_File_open(MPI_COMM_WORLD, paths[0], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &held));
    uint32_t round = 0;
    for (int stop = 0; !stop;) {
        round++;
        work("held", held, round, 0);
        MUST(MPI_File_open(MPI_COMM_WORLD, paths[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &anew));
        work("anew", anew, round, 1);
        MUST(MPI_File_close(&anew));
        rounds[round % SEGMENTS] = round;
        if (rank == 0) {
            say_round(round);
            stop = access(argv[2], F_OK) == 0;
        }
        MUST(MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD));
    }
    MUST(MPI_File_close(&held));
    uint64_t all[2], mine[2] = { written, verified };
    MUST(MPI_Reduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD));
    if (rank == 0)
        printf("ok %u rounds, %llu bytes written, %llu bytes read and verified\n", round, (unsigned long long)all[0],
               (unsigned long long)all[1]);
    MPI_Finalize();
    return 0;
}
