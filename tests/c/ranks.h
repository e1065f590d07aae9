/* What the programs that run on MPI's ranks share: how they fail, and bytes that follow from where they are.
 */
#ifndef RANKS_H
#define RANKS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "yielding.h"

enum { RANKS = 4 };

static int rank;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "rank %d: %s\n", rank, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

/* Makes an MPI call that must work. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code = (call);                                                                                             \
        if (code != MPI_SUCCESS) {                                                                                     \
            char reason[MPI_MAX_ERROR_STRING] = "";                                                                    \
            int length;                                                                                                \
            MPI_Error_string(code, reason, &length);                                                                   \
            fail("line %d: %s: %s", __LINE__, #call, reason);                                                          \
        }                                                                                                              \
    } while (0)

/* The byte that belongs at an offset of the file with this seed. It repeats at no block, page or stripe size. */
static unsigned char byte_at(uint64_t offset, uint32_t seed)
{
    uint64_t mixed = ((offset >> 3) + 1) * 0x9e3779b97f4a7c15u ^ seed * 0xc2b2ae3d27d4eb4fu;
    mixed ^= mixed >> 29;
    mixed *= 0xbf58476d1ce4e5b9u;
    return (unsigned char)(mixed >> (8 * (offset & 7)));
}

static void fill(unsigned char *to, uint64_t offset, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++)
        to[i] = byte_at(offset + i, seed);
}

static void check(const char *what, const unsigned char *got, uint64_t offset, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++)
        if (got[i] != byte_at(offset + i, seed))
            fail("%s: byte %llu is %02x, must be %02x", what, (unsigned long long)(offset + i), got[i],
                 byte_at(offset + i, seed));
}

/* A transfer that must be complete. */
static void complete(const char *what, MPI_Status *status, long long bytes)
{
    int count = -1;
    MUST(MPI_Get_count(status, MPI_BYTE, &count));
    if (count != bytes)
        fail("%s: %d bytes of %lld", what, count, bytes);
}

/* Gives the file a view in which `who` has every RANKSth block of `block` bytes behind `from`. */
static void view(MPI_File file, MPI_Offset from, int who, int block, int blocks)
{
    MPI_Datatype strided;
    MUST(MPI_Type_vector(blocks, block, block * RANKS, MPI_BYTE, &strided));
    MUST(MPI_Type_commit(&strided));
    MUST(MPI_File_set_view(file, from + (MPI_Offset)who * block, MPI_BYTE, strided, "native", MPI_INFO_NULL));
    MUST(MPI_Type_free(&strided));
}

#endif
