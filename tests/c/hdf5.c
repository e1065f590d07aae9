/* Parallel HDF5 over MPI-IO: 4 ranks, one file, chunked and contiguous datasets, attributes, groups, an extension.
 *
 *     mpicc.mpich -O2 -Wall -I/usr/include/hdf5/mpich hdf5.c -L/usr/lib/x86_64-linux-gnu/hdf5/mpich -lhdf5 -o hdf5
 *     mpiexec.mpich -n 4 ./hdf5 DIR
 *
 * The program makes DIR/hdf5 and leaves DIR/hdf5/parallel.h5. The transcript on rank 0's standard output is the same for
 * every run on a file system that is right. A mismatch is told on standard error and ends all ranks with status 1. At
 * the end rank 0 reads everything once more with HDF5's serial driver, which uses plain system calls and flock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "yielding.h"

enum { RANKS = 4, WIDTH = 601, HEIGHT = 800, TALLER = 1000, LENGTH = 1000003 };

static int rank;
static char path[4200];

static void __attribute__((noreturn)) fail(int line, const char *what)
{
    fprintf(stderr, "rank %d: line %d: %s\n", rank, line, what);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

/* An HDF5 call that must work: both handles and results are negative for failure. */
static hid_t checked(hid_t value, int line, const char *what)
{
    if (value < 0)
        fail(line, what);
    return value;
}
#define MUST(call) checked((hid_t)(call), __LINE__, #call)

#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        MPI_Barrier(MPI_COMM_WORLD);                                                                                   \
        if (rank == 0) {                                                                                               \
            printf(__VA_ARGS__);                                                                                       \
            putchar('\n');                                                                                             \
            fflush(stdout);                                                                                            \
        }                                                                                                              \
    } while (0)

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        fail(__LINE__, "no memory");
    memset(memory, 0xee, bytes);
    return memory;
}

/* The element that belongs at an index of the dataset with this seed. */
static int32_t element(uint64_t index, uint32_t seed)
{
    uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u ^ seed * 0xc2b2ae3d27d4eb4fu;
    mixed ^= mixed >> 31;
    mixed *= 0xbf58476d1ce4e5b9u;
    return (int32_t)(mixed >> 32);
}

static uint64_t sum(const int32_t *data, size_t count)
{
    uint64_t value = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        value = (value ^ (uint32_t)data[i]) * 0x100000001b3u;
    return value;
}

static hid_t transfer(H5FD_mpio_xfer_t how)
{
    hid_t list = MUST(H5Pcreate(H5P_DATASET_XFER));
    MUST(H5Pset_dxpl_mpio(list, how));
    return list;
}

static hid_t open_parallel(unsigned flags)
{
    hid_t access = MUST(H5Pcreate(H5P_FILE_ACCESS));
    MUST(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
    hid_t file = MUST(flags & H5F_ACC_TRUNC ? H5Fcreate(path, flags, H5P_DEFAULT, access) : H5Fopen(path, flags, access));
    MUST(H5Pclose(access));
    return file;
}

/* Moves rows `first`, `first + step`, ... of a grid. */
struct rows {
    hsize_t first, step, count;
};

static void move_rows(hid_t grid, struct rows rows, uint32_t seed, H5FD_mpio_xfer_t how, int writing)
{
    size_t count = rows.count * WIDTH;
    int32_t *data = room(count * sizeof *data + 1);
    hsize_t start[2] = { rows.first, 0 }, stride[2] = { rows.step, 1 }, blocks[2] = { rows.count, WIDTH }, size = count;
    hid_t space = MUST(H5Dget_space(grid)), memory = MUST(H5Screate_simple(1, &size, NULL)), list = transfer(how);
    MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, blocks, NULL));
    if (writing)
        for (size_t i = 0; i < count; i++)
            data[i] = element((rows.first + i / WIDTH * rows.step) * WIDTH + i % WIDTH, seed);
    if (writing)
        MUST(H5Dwrite(grid, H5T_NATIVE_INT32, memory, space, list, data));
    else
        MUST(H5Dread(grid, H5T_NATIVE_INT32, memory, space, list, data));
    if (!writing)
        for (size_t i = 0; i < count; i++)
            if (data[i] != element((rows.first + i / WIDTH * rows.step) * WIDTH + i % WIDTH, seed))
                fail(__LINE__, "an element of a grid differs");
    MUST(H5Pclose(list));
    MUST(H5Sclose(memory));
    MUST(H5Sclose(space));
    free(data);
}

/* The rows of one rank: interleaved, or its quarter. */
static struct rows interleaved(int who, int from, int to)
{
    return (struct rows){ (hsize_t)(from + who), RANKS, (hsize_t)((to - from) / RANKS) };
}

static struct rows quarter(int who)
{
    return (struct rows){ (hsize_t)who * (HEIGHT / RANKS), 1, HEIGHT / RANKS };
}

static hid_t make_grid(hid_t where, const char *name, int chunked)
{
    hsize_t size[2] = { HEIGHT, WIDTH }, most[2] = { H5S_UNLIMITED, WIDTH }, chunk[2] = { 64, 128 };
    hid_t space = MUST(H5Screate_simple(2, size, chunked ? most : NULL)), list = MUST(H5Pcreate(H5P_DATASET_CREATE));
    MUST(H5Pset_obj_track_times(list, 0));
    if (chunked)
        MUST(H5Pset_chunk(list, 2, chunk));
    hid_t grid = MUST(H5Dcreate2(where, name, H5T_STD_I32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
    MUST(H5Pclose(list));
    MUST(H5Sclose(space));
    return grid;
}

/* A line of elements that the ranks write in ranges of different lengths, without telling each other. */
static void move_line(hid_t line, int who, int writing)
{
    static const hsize_t ends[RANKS + 1] = { 0, 1, 333333, 500009, LENGTH };
    hsize_t start = ends[who], count = ends[who + 1] - start;
    int32_t *data = room(count * sizeof *data);
    hid_t space = MUST(H5Dget_space(line)), memory = MUST(H5Screate_simple(1, &count, NULL));
    hid_t list = transfer(H5FD_MPIO_INDEPENDENT);
    MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL));
    if (writing) {
        for (hsize_t i = 0; i < count; i++)
            data[i] = element(start + i, 30);
        MUST(H5Dwrite(line, H5T_NATIVE_INT32, memory, space, list, data));
    } else {
        MUST(H5Dread(line, H5T_NATIVE_INT32, memory, space, list, data));
        for (hsize_t i = 0; i < count; i++)
            if (data[i] != element(start + i, 30))
                fail(__LINE__, "an element of the line differs");
    }
    MUST(H5Pclose(list));
    MUST(H5Sclose(memory));
    MUST(H5Sclose(space));
    free(data);
}

static void attribute(hid_t on, const char *name, int32_t from, hsize_t count)
{
    int32_t values[64];
    for (hsize_t i = 0; i < count; i++)
        values[i] = from + (int32_t)i;
    hid_t space = MUST(H5Screate_simple(1, &count, NULL));
    hid_t made = MUST(H5Acreate2(on, name, H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    MUST(H5Awrite(made, H5T_NATIVE_INT32, values));
    MUST(H5Aclose(made));
    MUST(H5Sclose(space));
}

static void expect_attribute(hid_t on, const char *name, int32_t from, hsize_t count)
{
    int32_t values[64];
    memset(values, 0xee, sizeof values);
    hid_t opened = MUST(H5Aopen(on, name, H5P_DEFAULT));
    MUST(H5Aread(opened, H5T_NATIVE_INT32, values));
    for (hsize_t i = 0; i < count; i++)
        if (values[i] != from + (int32_t)i)
            fail(__LINE__, "an attribute differs");
    MUST(H5Aclose(opened));
}

static void create(void)
{
    hid_t file = open_parallel(H5F_ACC_TRUNC);
    hid_t outer = MUST(H5Gcreate2(file, "run", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    hid_t inner = MUST(H5Gcreate2(outer, "step 1", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    attribute(file, "version", 5, 1);
    attribute(inner, "limits", -7, 60);

    hid_t chunked = make_grid(inner, "chunked", 1);
    move_rows(chunked, interleaved(rank, 0, HEIGHT), 10, H5FD_MPIO_COLLECTIVE, 1);
    attribute(chunked, "unit", 100, 3);
    MUST(H5Dclose(chunked));
    SAY("ok chunked %d x %d collective", HEIGHT, WIDTH);

    hid_t contiguous = make_grid(inner, "contiguous", 0);
    move_rows(contiguous, interleaved(rank, 0, HEIGHT), 20, H5FD_MPIO_COLLECTIVE, 1);
    MUST(H5Dclose(contiguous));
    SAY("ok contiguous %d x %d collective", HEIGHT, WIDTH);

    /* Independent: each rank writes its rows one by one, and no row fits a page or a block. */
    hid_t apart = make_grid(outer, "apart", 0);
    move_rows(apart, interleaved(rank, 0, HEIGHT), 25, H5FD_MPIO_INDEPENDENT, 1);
    MUST(H5Dclose(apart));
    SAY("ok contiguous %d x %d independent", HEIGHT, WIDTH);

    hsize_t length = LENGTH;
    hid_t space = MUST(H5Screate_simple(1, &length, NULL));
    hid_t timeless = MUST(H5Pcreate(H5P_DATASET_CREATE));
    MUST(H5Pset_obj_track_times(timeless, 0));
    hid_t line = MUST(H5Dcreate2(outer, "line", H5T_STD_I32LE, space, H5P_DEFAULT, timeless, H5P_DEFAULT));
    MUST(H5Pclose(timeless));
    MUST(H5Sclose(space));
    move_line(line, rank, 1);
    MUST(H5Dclose(line));
    SAY("ok line %d independent", LENGTH);

    /* Many small objects: metadata that HDF5 writes collectively when the file is closed. */
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "group %d", i);
        hid_t group = MUST(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        attribute(group, "number", i * 1000, 4);
        MUST(H5Gclose(group));
    }
    MUST(H5Gclose(inner));
    MUST(H5Gclose(outer));
    MUST(H5Fflush(file, H5F_SCOPE_GLOBAL));
    MUST(H5Fclose(file));
    SAY("ok 50 groups, flushed and closed");
}

static void extend(void)
{
    hsize_t taller[2] = { TALLER, WIDTH };
    hid_t file = open_parallel(H5F_ACC_RDWR);
    hid_t chunked = MUST(H5Dopen2(file, "/run/step 1/chunked", H5P_DEFAULT));
    MUST(H5Dset_extent(chunked, taller));
    move_rows(chunked, interleaved(rank, HEIGHT, TALLER), 10, H5FD_MPIO_COLLECTIVE, 1);
    MUST(H5Dclose(chunked));
    MUST(H5Ldelete(file, "group 7", H5P_DEFAULT));
    MUST(H5Fclose(file));
    SAY("ok extended to %d rows", TALLER);
}

static void verify(void)
{
    int other = (rank + 1) % RANKS;
    hid_t file = open_parallel(H5F_ACC_RDONLY);
    expect_attribute(file, "version", 5, 1);
    hid_t inner = MUST(H5Gopen2(file, "run/step 1", H5P_DEFAULT));
    expect_attribute(inner, "limits", -7, 60);
    MUST(H5Gclose(inner));
    hid_t chunked = MUST(H5Dopen2(file, "/run/step 1/chunked", H5P_DEFAULT));
    expect_attribute(chunked, "unit", 100, 3);
    move_rows(chunked, quarter(other), 10, H5FD_MPIO_COLLECTIVE, 0);
    move_rows(chunked, interleaved(other, HEIGHT, TALLER), 10, H5FD_MPIO_INDEPENDENT, 0);
    MUST(H5Dclose(chunked));
    hid_t contiguous = MUST(H5Dopen2(file, "/run/step 1/contiguous", H5P_DEFAULT));
    move_rows(contiguous, interleaved(other, 0, HEIGHT), 20, H5FD_MPIO_COLLECTIVE, 0);
    MUST(H5Dclose(contiguous));
    hid_t apart = MUST(H5Dopen2(file, "/run/apart", H5P_DEFAULT));
    move_rows(apart, quarter(other), 25, H5FD_MPIO_INDEPENDENT, 0);
    MUST(H5Dclose(apart));
    hid_t line = MUST(H5Dopen2(file, "/run/line", H5P_DEFAULT));
    move_line(line, other, 0);
    MUST(H5Dclose(line));
    MUST(H5Fclose(file));
    SAY("ok reopened and verified");
}

/* Reads a whole dataset with the serial driver and says its sum, which must be that of what was written. */
static void read_whole(hid_t file, const char *name, size_t count, uint32_t seed)
{
    int32_t *data = room(count * sizeof *data), *expected = room(count * sizeof *expected);
    hid_t set = MUST(H5Dopen2(file, name, H5P_DEFAULT)), space = MUST(H5Dget_space(set));
    if (H5Sget_simple_extent_npoints(space) != (hssize_t)count)
        fail(__LINE__, "a dataset has another size");
    MUST(H5Dread(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, data));
    for (size_t i = 0; i < count; i++)
        expected[i] = element(i, seed);
    if (memcmp(data, expected, count * sizeof *data) != 0)
        fail(__LINE__, "a dataset differs when read serially");
    printf("serial %s %zu elements sum %016llx\n", name, count, (unsigned long long)sum(data, count));
    MUST(H5Sclose(space));
    MUST(H5Dclose(set));
    free(data);
    free(expected);
}

static void serial(void)
{
    hid_t file = MUST(H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT));
    read_whole(file, "/run/step 1/chunked", (size_t)TALLER * WIDTH, 10);
    read_whole(file, "/run/step 1/contiguous", (size_t)HEIGHT * WIDTH, 20);
    read_whole(file, "/run/apart", (size_t)HEIGHT * WIDTH, 25);
    read_whole(file, "/run/line", LENGTH, 30);
    H5G_info_t info;
    MUST(H5Gget_info(file, &info));
    printf("serial %d links at the root\n", (int)info.nlinks);
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "group %d", i);
        if (i == 7) {
            if (H5Lexists(file, name, H5P_DEFAULT) != 0)
                fail(__LINE__, "a deleted group is still there");
            continue;
        }
        hid_t group = MUST(H5Gopen2(file, name, H5P_DEFAULT));
        expect_attribute(group, "number", i * 1000, 4);
        MUST(H5Gclose(group));
    }
    attribute(file, "checked", 1, 1);
    MUST(H5Fclose(file));
    file = MUST(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT));
    expect_attribute(file, "checked", 1, 1);
    MUST(H5Fclose(file));
    struct stat st;
    if (stat(path, &st) != 0)
        fail(__LINE__, "stat");
    printf("serial change ok, file of %lld bytes\n", (long long)st.st_size);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2 || ranks != RANKS) {
        if (rank == 0)
            fprintf(stderr, "usage: mpiexec -n %d %s DIRECTORY\n", RANKS, argv[0]);
        MPI_Finalize();
        return 2;
    }
    snprintf(path, sizeof path, "%.4000s/hdf5", argv[1]);
    if (rank == 0 && mkdir(path, 0755) != 0)
        fail(__LINE__, strerror(errno));
    strcat(path, "/parallel.h5");
    MPI_Barrier(MPI_COMM_WORLD);
    create();
    extend();
    verify();
    if (rank == 0)
        serial();
    SAY("done");
    MPI_Finalize();
    return 0;
}
