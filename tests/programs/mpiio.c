/* MPI-IO as simulations use it: each rank's part by explicit offsets, by a strided view, collectively and not, in one shared
 * file; then all of it read back by another rank and checked. Prints the same on any file system. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 65536, STRIDE = 16 };

static int rank, size;

static void must(int code, const char *what)
{
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length;
        MPI_Error_string(code, text, &length);
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void say(const char *what, long value)
{
    long all = 0;
    MPI_Reduce(&value, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s %ld\n", what, all);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2)
        return 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/shared.dat", argv[1]);
    int *data = malloc(N * sizeof *data), *back = malloc(N * sizeof *back);
    for (int i = 0; i < N; i++)
        data[i] = rank * 1000003 + i;
    int next = (rank + 1) % size;
    MPI_File file;
    MPI_Status status;
    MPI_Offset bytes;
    long wrong = 0;

    /* Each rank its own stretch. */
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    must(MPI_File_write_at(file, (MPI_Offset)rank * N * sizeof(int), data, N, MPI_INT, &status), "write_at");
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    must(MPI_File_read_at(file, (MPI_Offset)next * N * sizeof(int), back, N, MPI_INT, &status), "read_at");
    for (int i = 0; i < N; i++)
        wrong += back[i] != next * 1000003 + i;
    say("independent: wrong", wrong);
    must(MPI_File_get_size(file, &bytes), "get_size");
    say("size", rank == 0 ? (long)bytes : 0);

    /* Collective, through a strided view: STRIDE integers of each rank in turn. */
    MPI_Datatype filetype;
    MPI_Type_vector(N / STRIDE, STRIDE, STRIDE * size, MPI_INT, &filetype);
    MPI_Type_commit(&filetype);
    must(MPI_File_set_view(file, (MPI_Offset)rank * STRIDE * sizeof(int), MPI_INT, filetype, "native", MPI_INFO_NULL), "set_view");
    must(MPI_File_write_all(file, data, N, MPI_INT, &status), "write_all");
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    must(MPI_File_set_view(file, (MPI_Offset)next * STRIDE * sizeof(int), MPI_INT, filetype, "native", MPI_INFO_NULL), "set_view");
    memset(back, 0, N * sizeof *back);
    must(MPI_File_read_all(file, back, N, MPI_INT, &status), "read_all");
    wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += back[i] != next * 1000003 + i;
    say("strided collective: wrong", wrong);

    /* The same view without collective buffering: data sieving reads, modifies and writes under a lock. */
    must(MPI_File_set_view(file, (MPI_Offset)rank * STRIDE * sizeof(int), MPI_INT, filetype, "native", MPI_INFO_NULL), "set_view");
    for (int i = 0; i < N; i++)
        data[i] = -data[i];
    must(MPI_File_set_atomicity(file, 1), "set_atomicity");
    must(MPI_File_write(file, data, N, MPI_INT, &status), "write");
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    must(MPI_File_set_view(file, (MPI_Offset)next * STRIDE * sizeof(int), MPI_INT, filetype, "native", MPI_INFO_NULL), "set_view");
    must(MPI_File_read(file, back, N, MPI_INT, &status), "read");
    wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += back[i] != -(next * 1000003 + i);
    say("strided independent: wrong", wrong);
    must(MPI_File_close(&file), "close");

    /* Growing, shrinking, reserving. */
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open again");
    must(MPI_File_set_size(file, 1000), "set_size");
    must(MPI_File_preallocate(file, 2000000), "preallocate");
    must(MPI_File_get_size(file, &bytes), "get_size");
    say("preallocated", rank == 0 ? (long)bytes : 0);
    must(MPI_File_close(&file), "close");
    if (rank == 0)
        must(MPI_File_delete(path, MPI_INFO_NULL), "delete");
    free(data);
    free(back);
    MPI_Type_free(&filetype);
    MPI_Finalize();
    return 0;
}
