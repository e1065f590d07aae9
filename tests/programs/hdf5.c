/* Parallel HDF5: four ranks write one dataset collectively and one independently into the same file, close it, open it again
 * and check what another rank has written. Prints the same on any file system. */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 256, COLUMNS = 1024 };

static int rank, size;

static hid_t must(hid_t id, const char *what)
{
    if (id < 0) {
        fprintf(stderr, "rank %d: %s failed\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return id;
}

static double value(int row, int column) { return row * 4096.0 + column; }

static void select_rows(hid_t space, int of)
{
    hsize_t start[2] = {(hsize_t)of * ROWS, 0}, count[2] = {ROWS, COLUMNS};
    must(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "select");
}

static hid_t transfer(H5FD_mpio_xfer_t how)
{
    hid_t plist = must(H5Pcreate(H5P_DATASET_XFER), "plist");
    must(H5Pset_dxpl_mpio(plist, how), "dxpl");
    return plist;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2)
        return 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/data.h5", argv[1]);
    double *data = malloc(sizeof(double) * ROWS * COLUMNS);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            data[r * COLUMNS + c] = value(rank * ROWS + r, c);
    hid_t access = must(H5Pcreate(H5P_FILE_ACCESS), "access");
    must(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "fapl");
    hsize_t whole[2] = {(hsize_t)ROWS * size, COLUMNS}, part[2] = {ROWS, COLUMNS}, chunk[2] = {64, 256};
    hid_t memory = must(H5Screate_simple(2, part, NULL), "memory space");
    hid_t space = must(H5Screate_simple(2, whole, NULL), "file space");
    const char *names[2] = {"contiguous", "chunked"};
    H5FD_mpio_xfer_t how[2] = {H5FD_MPIO_INDEPENDENT, H5FD_MPIO_COLLECTIVE};

    hid_t file = must(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), "create");
    for (int i = 0; i < 2; i++) {
        hid_t create = must(H5Pcreate(H5P_DATASET_CREATE), "create plist");
        if (i == 1)
            must(H5Pset_chunk(create, 2, chunk), "chunk");
        hid_t set = must(H5Dcreate2(file, names[i], H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, create, H5P_DEFAULT), "dataset");
        hid_t plist = transfer(how[i]);
        select_rows(space, rank);
        must(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, plist, data), "write");
        H5Pclose(plist);
        H5Dclose(set);
        H5Pclose(create);
    }
    must(H5Fclose(file), "close");

    file = must(H5Fopen(path, H5F_ACC_RDONLY, access), "open");
    for (int i = 0; i < 2; i++) {
        int other = (rank + 1 + i) % size;
        hid_t set = must(H5Dopen2(file, names[i], H5P_DEFAULT), "open dataset");
        hid_t plist = transfer(how[1 - i]);
        select_rows(space, other);
        must(H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, plist, data), "read");
        long wrong = 0, all = 0;
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++)
                wrong += data[r * COLUMNS + c] != value(other * ROWS + r, c);
        MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%s: wrong %ld\n", names[i], all);
            fflush(stdout);
        }
        H5Pclose(plist);
        H5Dclose(set);
    }
    must(H5Fclose(file), "close");
    H5Sclose(memory);
    H5Sclose(space);
    H5Pclose(access);
    free(data);
    MPI_Finalize();
    return 0;
}
