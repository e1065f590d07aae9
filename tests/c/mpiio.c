/* MPI-IO through ROMIO's generic file-system driver: 4 ranks, shared files, every byte checked.
 *
 *     mpicc.mpich -O2 -Wall mpiio.c -o mpiio && mpiexec.mpich -n 4 ./mpiio DIR
 *
 * The program makes DIR/mpiio, works there, and leaves DIR/mpiio/shared.bin. What rank 0 prints is the same for every
 * run on a file system that is right: nothing in it depends on time or on the order in which ranks run. A mismatch is
 * told on standard error and ends all ranks with status 1.
 *
 * The parts are chosen for what they ask of the file system: collective buffering (one rank writes for all, or all
 * write at once), data sieving (read, change, write back under fcntl locks: lost when locks do nothing), the shared
 * file pointer (a hidden file under an fcntl lock), glibc's asynchronous I/O (helper threads), sizes, and atomic mode.
 */
#include "ranks.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static char base[4096];

/* Says a line of the transcript, once everybody has come this far. */
#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        MPI_Barrier(MPI_COMM_WORLD);                                                                                   \
        if (rank == 0) {                                                                                               \
            printf(__VA_ARGS__);                                                                                       \
            putchar('\n');                                                                                             \
            fflush(stdout);                                                                                            \
        }                                                                                                              \
    } while (0)

static const char *in(const char *name)
{
    static char paths[8][8192];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes == 0 ? 1 : bytes);
    if (memory == NULL)
        fail("no memory");
    memset(memory, 0xee, bytes);
    return memory;
}

static uint32_t crc(uint32_t value, const unsigned char *data, size_t count)
{
    static uint32_t table[256];
    if (table[1] == 0)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t entry = i;
            for (int bit = 0; bit < 8; bit++)
                entry = entry >> 1 ^ (entry & 1 ? 0xedb88320u : 0);
            table[i] = entry;
        }
    value = ~value;
    for (size_t i = 0; i < count; i++)
        value = value >> 8 ^ table[(value ^ data[i]) & 255];
    return ~value;
}

/* Reads a whole file by plain system calls: what other programs will see. Rank 0 only. */
static uint32_t plain_crc(const char *name, long long *size)
{
    enum { PIECE = 1000003 };
    unsigned char *piece = room(PIECE);
    int fd = open(in(name), O_RDONLY);
    if (fd < 0)
        fail("open %s: %s", name, strerror(errno));
    uint32_t value = 0;
    *size = 0;
    for (;;) {
        ssize_t count = read(fd, piece, PIECE);
        if (count < 0)
            fail("read %s: %s", name, strerror(errno));
        if (count == 0)
            break;
        value = crc(value, piece, (size_t)count);
        *size += count;
    }
    close(fd);
    free(piece);
    return value;
}

static void say_file(const char *part, const char *name)
{
    long long size = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    uint32_t value = rank == 0 ? plain_crc(name, &size) : 0;
    SAY("ok %s %lld bytes crc %08x", part, size, value);
}

static MPI_File open_file(MPI_Comm group, const char *name, int mode, MPI_Info info)
{
    MPI_File file;
    MUST(MPI_File_open(group, in(name), mode, info, &file));
    return file;
}

static MPI_Info hints(const char *const *pairs)
{
    MPI_Info info;
    MUST(MPI_Info_create(&info));
    for (; pairs[0] != NULL; pairs += 2)
        MUST(MPI_Info_set(info, pairs[0], pairs[1]));
    return info;
}

/* All ranks write their blocks in turn, and read back those of the next rank. */
static void strided(const char *part, const char *name, MPI_Info info, int block, int blocks, uint32_t seed,
                    int together)
{
    size_t bytes = (size_t)block * blocks;
    unsigned char *data = room(bytes);
    MPI_Status status;
    MPI_File file = open_file(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info);
    view(file, 0, rank, block, blocks);
    for (int i = 0; i < blocks; i++)
        fill(data + (size_t)i * block, ((uint64_t)i * RANKS + rank) * block, block, seed);
    MUST((together ? MPI_File_write_at_all : MPI_File_write_at)(file, 0, data, (int)bytes, MPI_BYTE, &status));
    complete(part, &status, (long long)bytes);
    MUST(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_sync(file));
    int other = (rank + 1) % RANKS;
    view(file, 0, other, block, blocks);
    memset(data, 0xee, bytes);
    MUST((together ? MPI_File_read_at_all : MPI_File_read_at)(file, 0, data, (int)bytes, MPI_BYTE, &status));
    complete(part, &status, (long long)bytes);
    for (int i = 0; i < blocks; i++)
        check(part, data + (size_t)i * block, ((uint64_t)i * RANKS + other) * block, block, seed);
    MUST(MPI_File_close(&file));
    free(data);
    say_file(part, name);
}

static void collective(void)
{
    strided("collective", "shared.bin", MPI_INFO_NULL, 65536, 64, 1, 1);
    /* Every rank aggregates: four writers at once in the neighbouring parts of a file, in pieces of an odd size. */
    MPI_Info all = hints((const char *const[]){ "romio_cb_write", "enable", "romio_cb_read", "enable", "cb_nodes", "4",
                                                "cb_config_list", "*:4", "cb_buffer_size", "700001", NULL });
    strided("four aggregators", "aggregated", all, 4099, 307, 2, 1);
    MPI_Info_free(&all);
    /* Each rank reads a range, changes its own blocks in it and writes it back, while the others do the same. */
    MPI_Info sieve = hints((const char *const[]){ "romio_cb_write", "disable", "romio_cb_read", "disable",
                                                  "romio_ds_write", "enable", "romio_ds_read", "enable",
                                                  "ind_wr_buffer_size", "65536", "ind_rd_buffer_size", "65536", NULL });
    strided("data sieving", "sieved", sieve, 517, 700, 3, 0);
    MPI_Info_free(&sieve);
    MPI_Info plain = hints((const char *const[]){ "romio_cb_write", "disable", "romio_ds_write", "disable",
                                                  "romio_ds_read", "disable", NULL });
    strided("no sieving", "unsieved", plain, 1021, 100, 4, 0);
    MPI_Info_free(&plain);
}

/* Ranges of awkward lengths that touch each other, dealt to the ranks in turn; read by the rank after the writer. */
static void independent(void)
{
    static const int lengths[] = { 1, 7, 511, 4095, 4096, 4097, 65537, 524287, 524288, 524289, 1048577, 3, 99991 };
    enum { COUNT = 40, KINDS = sizeof lengths / sizeof *lengths, LONGEST = 1048577 };
    unsigned char *data = room(LONGEST);
    MPI_Status status;
    MPI_File file = open_file(MPI_COMM_WORLD, "independent", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    for (int pass = 0; pass < 2; pass++) {
        MPI_Offset offset = 0;
        for (int i = 0; i < COUNT; i++) {
            int length = lengths[i * 5 % KINDS];
            if (pass == 0 && i % RANKS == rank) {
                fill(data, offset, length, 5);
                MUST(MPI_File_write_at(file, offset, data, length, MPI_BYTE, &status));
                complete("independent write", &status, length);
            }
            if (pass == 1 && (i + 1) % RANKS == rank) {
                memset(data, 0xee, length);
                MUST(MPI_File_read_at(file, offset, data, length, MPI_BYTE, &status));
                complete("independent read", &status, length);
                check("independent", data, offset, length, 5);
            }
            offset += length;
        }
        if (pass == 1) {
            MUST(MPI_File_read_at(file, offset - 10, data, 100, MPI_BYTE, &status));
            complete("read over the end", &status, 10);
            MUST(MPI_File_read_at(file, offset + 10, data, 100, MPI_BYTE, &status));
            complete("read behind the end", &status, 0);
        }
        MUST(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        MUST(MPI_File_sync(file));
    }
    MUST(MPI_File_close(&file));
    free(data);
    say_file("independent", "independent");
}

/* Several operations under way at once. ROMIO hands contiguous ones to glibc's aio, whose threads do the I/O. */
static void asynchronous(void)
{
    enum { AT_ONCE = 8, LENGTH = 50021 };
    unsigned char *data = room(AT_ONCE * LENGTH);
    MPI_Request requests[AT_ONCE];
    MPI_Status statuses[AT_ONCE];
    MPI_File file = open_file(MPI_COMM_WORLD, "asynchronous", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    for (int pass = 0; pass < 2; pass++) {
        int who = (rank + pass) % RANKS;
        for (int i = 0; i < AT_ONCE; i++) {
            MPI_Offset offset = (MPI_Offset)(i * RANKS + who) * LENGTH;
            unsigned char *part = data + (size_t)i * LENGTH;
            if (pass == 0) {
                fill(part, offset, LENGTH, 6);
                MUST(MPI_File_iwrite_at(file, offset, part, LENGTH, MPI_BYTE, &requests[i]));
            } else {
                memset(part, 0xee, LENGTH);
                MUST(MPI_File_iread_at(file, offset, part, LENGTH, MPI_BYTE, &requests[i]));
            }
        }
        MUST(MPI_Waitall(AT_ONCE, requests, statuses));
        for (int i = 0; i < AT_ONCE; i++) {
            complete("asynchronous", &statuses[i], LENGTH);
            if (pass == 1)
                check("asynchronous", data + (size_t)i * LENGTH, (uint64_t)(i * RANKS + who) * LENGTH, LENGTH, 6);
        }
        MUST(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        MUST(MPI_File_sync(file));
    }
    MUST(MPI_File_close(&file));
    free(data);
    say_file("asynchronous", "asynchronous");
}

/* A record of the shared file pointer's test: its writer, number and length, then bytes that follow from them. */
struct record {
    uint32_t magic, writer, number, length;
};
enum { RECORDS = 40, MAGIC = 0x42495655, LONGEST_RECORD = 3000 };

static uint32_t record_length(uint32_t writer, uint32_t number)
{
    return 1 + (writer * 7919 + number * 6151) % (LONGEST_RECORD - 1);
}

static size_t make_record(unsigned char *to, uint32_t writer, uint32_t number)
{
    struct record record = { MAGIC, writer, number, record_length(writer, number) };
    memcpy(to, &record, sizeof record);
    fill(to + sizeof record, number, record.length, 100 + writer);
    return sizeof record + record.length;
}

/* Reads the file from its start: every record of every writer must be there, whole, once. */
static void check_records(const char *what, const char *name, int in_order)
{
    int seen[RANKS][RECORDS] = { 0 }, found = 0;
    struct stat st;
    if (stat(in(name), &st) != 0)
        fail("stat %s: %s", name, strerror(errno));
    size_t size = (size_t)st.st_size, at = 0;
    unsigned char *data = room(size);
    MPI_Status status;
    MPI_File file = open_file(MPI_COMM_SELF, name, MPI_MODE_RDONLY, MPI_INFO_NULL);
    MUST(MPI_File_read(file, data, (int)size, MPI_BYTE, &status));
    complete(what, &status, (long long)size);
    MUST(MPI_File_close(&file));
    while (at < size) {
        struct record record;
        if (size - at < sizeof record)
            fail("%s: half a record at %zu", what, at);
        memcpy(&record, data + at, sizeof record);
        if (record.magic != MAGIC || record.writer >= RANKS || record.number >= RECORDS ||
            record.length != record_length(record.writer, record.number) || size - at - sizeof record < record.length)
            fail("%s: no record at %zu: some overlap or were lost", what, at);
        if (seen[record.writer][record.number]++)
            fail("%s: record %u of rank %u is there twice", what, record.number, record.writer);
        if (in_order && record.number * RANKS + record.writer != (uint32_t)found)
            fail("%s: record %u of rank %u out of order", what, record.number, record.writer);
        if (!in_order && record.number > 0 && !seen[record.writer][record.number - 1])
            fail("%s: record %u of rank %u before its predecessor", what, record.number, record.writer);
        check(what, data + at + sizeof record, record.number, record.length, 100 + record.writer);
        at += sizeof record + record.length;
        found++;
    }
    if (found != RANKS * RECORDS)
        fail("%s: %d records of %d", what, found, RANKS * RECORDS);
    free(data);
}

static void shared_pointer(void)
{
    unsigned char *data = room(sizeof(struct record) + LONGEST_RECORD);
    MPI_Status status;
    MPI_Offset end;
    for (int ordered = 0; ordered < 2; ordered++) {
        const char *name = ordered ? "ordered" : "anyhow";
        MPI_File file = open_file(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
        for (uint32_t i = 0; i < RECORDS; i++) {
            size_t bytes = make_record(data, rank, i);
            MUST((ordered ? MPI_File_write_ordered : MPI_File_write_shared)(file, data, (int)bytes, MPI_BYTE, &status));
            complete(name, &status, (long long)bytes);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MUST(MPI_File_get_position_shared(file, &end));
        MUST(MPI_File_close(&file));
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            check_records(name, name, ordered);
        if (ordered)
            say_file("ordered", name);
        else
            SAY("ok shared pointer %d records, end %lld", RANKS * RECORDS, (long long)end);
    }
    /* The other way: the ranks share out the slots of a file, and none may be dealt twice. */
    enum { SLOTS = 120, SLOT = 1237 };
    int mine[SLOTS] = { 0 }, all[SLOTS];
    if (rank == 0) {
        MPI_File file = open_file(MPI_COMM_SELF, "slots", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL);
        unsigned char *slots = room(SLOTS * SLOT);
        for (int i = 0; i < SLOTS; i++) {
            slots[(size_t)i * SLOT] = (unsigned char)i;
            fill(slots + (size_t)i * SLOT + 1, i, SLOT - 1, 8);
        }
        MUST(MPI_File_write(file, slots, SLOTS * SLOT, MPI_BYTE, &status));
        MUST(MPI_File_close(&file));
        free(slots);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file = open_file(MPI_COMM_WORLD, "slots", MPI_MODE_RDONLY, MPI_INFO_NULL);
    for (;;) {
        int count;
        MUST(MPI_File_read_shared(file, data, SLOT, MPI_BYTE, &status));
        MUST(MPI_Get_count(&status, MPI_BYTE, &count));
        if (count == 0)
            break;
        if (count != SLOT || data[0] >= SLOTS)
            fail("a slot of %d bytes", count);
        check("slots", data + 1, data[0], SLOT - 1, 8);
        mine[data[0]]++;
    }
    MUST(MPI_File_close(&file));
    MUST(MPI_Allreduce(mine, all, SLOTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < SLOTS; i++)
        if (all[i] != 1)
            fail("slot %d was dealt %d times", i, all[i]);
    SAY("ok shared reading %d slots", SLOTS);
    free(data);
}

static const char *error_class(int code)
{
    int class = 0;
    MPI_Error_class(code, &class);
    return class == MPI_SUCCESS            ? "success"
           : class == MPI_ERR_NO_SUCH_FILE ? "no such file"
           : class == MPI_ERR_FILE_EXISTS  ? "file exists"
           : class == MPI_ERR_READ_ONLY    ? "read only"
                                           : "another error";
}

/* All ranks and the plain stat must agree on the size. */
static void expect_size(MPI_File file, const char *name, long long expected)
{
    MPI_Offset size;
    struct stat st;
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_get_size(file, &size));
    if (size != expected)
        fail("%s: MPI says %lld bytes, must be %lld", name, (long long)size, expected);
    if (stat(in(name), &st) != 0 || st.st_size != expected)
        fail("%s: stat says %lld bytes, must be %lld", name, (long long)st.st_size, expected);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void expect_zeros(MPI_File file, MPI_Offset from, int count)
{
    unsigned char *data = room(count);
    MPI_Status status;
    MUST(MPI_File_read_at(file, from, data, count, MPI_BYTE, &status));
    complete("zeros", &status, count);
    for (int i = 0; i < count; i++)
        if (data[i] != 0)
            fail("byte %lld of a hole is %02x", (long long)from + i, data[i]);
    free(data);
}

static void sizes(void)
{
    unsigned char data[5000];
    MPI_Status status;
    MPI_File file = open_file(MPI_COMM_WORLD, "sizes", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    expect_size(file, "sizes", 0);
    fill(data, (uint64_t)rank * 5000, 5000, 9);
    MUST(MPI_File_write_at_all(file, (MPI_Offset)rank * 5000, data, 5000, MPI_BYTE, &status));
    expect_size(file, "sizes", 20000);
    MUST(MPI_File_set_size(file, 3000001));
    expect_size(file, "sizes", 3000001);
    expect_zeros(file, 20000 + rank, 2979998);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_set_size(file, 7777));
    expect_size(file, "sizes", 7777);
    MUST(MPI_File_set_size(file, 20000));
    expect_zeros(file, 7777, 20000 - 7777);
    MUST(MPI_File_read_at(file, 0, data, 5000, MPI_BYTE, &status));
    check("kept", data, 0, 5000, 9);
    MPI_Barrier(MPI_COMM_WORLD);
    SAY("ok set_size");
    MUST(MPI_File_preallocate(file, 1500000));
    expect_size(file, "sizes", 1500000);
    MUST(MPI_File_read_at(file, 0, data, 5000, MPI_BYTE, &status));
    check("kept by preallocate", data, 0, 5000, 9);
    expect_zeros(file, 7777, 1500000 - 7777);
    MUST(MPI_File_preallocate(file, 100));
    expect_size(file, "sizes", 1500000);
    SAY("ok preallocate");
    /* Far out: offsets past 32 bits, on a file that stays sparse. */
    MPI_Offset far = ((MPI_Offset)1 << 36) + 12345 + rank * 4096;
    fill(data, far, 4096, 10);
    MUST(MPI_File_write_at(file, far, data, 4096, MPI_BYTE, &status));
    expect_size(file, "sizes", ((long long)1 << 36) + 12345 + 4 * 4096);
    far = ((MPI_Offset)1 << 36) + 12345 + (rank + 1) % RANKS * 4096;
    MUST(MPI_File_read_at(file, far, data, 4096, MPI_BYTE, &status));
    check("far", data, far, 4096, 10);
    MPI_Offset position;
    MUST(MPI_File_seek(file, -4096, MPI_SEEK_END));
    MUST(MPI_File_get_position(file, &position));
    MUST(MPI_File_close(&file));
    SAY("ok far offset %lld", (long long)position);

    MPI_File refused;
    int mode = MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR;
    int code = MPI_File_open(MPI_COMM_WORLD, in("sizes"), mode, MPI_INFO_NULL, &refused);
    SAY("exclusive: %s", error_class(code));
    code = MPI_File_open(MPI_COMM_WORLD, in("missing/file"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &refused);
    SAY("below nothing: %s", error_class(code));
    file = open_file(MPI_COMM_WORLD, "sizes", MPI_MODE_RDONLY, MPI_INFO_NULL);
    code = MPI_File_write_at(file, 0, data, 10, MPI_BYTE, &status);
    SAY("write to read only: %s", error_class(code));
    MUST(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        MUST(MPI_File_delete(in("sizes"), MPI_INFO_NULL));
    SAY("delete: %s", access(in("sizes"), F_OK) == 0 ? "still there" : "gone");
    code = MPI_File_delete(in("sizes"), MPI_INFO_NULL);
    SAY("delete again: %s", error_class(code));
    code = MPI_File_open(MPI_COMM_WORLD, in("sizes"), MPI_MODE_RDONLY, MPI_INFO_NULL, &refused);
    SAY("open deleted: %s", error_class(code));
    file = open_file(MPI_COMM_WORLD, "short-lived", mode | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL);
    MUST(MPI_File_write_at_all(file, rank * 10, data, 10, MPI_BYTE, &status));
    MUST(MPI_File_close(&file));
    SAY("delete on close: %s", access(in("short-lived"), F_OK) == 0 ? "still there" : "gone");
    /* Append mode starts every rank at the end. */
    for (int i = 0; i < 2; i++) {
        file = open_file(MPI_COMM_WORLD, "append", MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL);
        MUST(MPI_File_get_position(file, &position));
        if (position != i * 400)
            fail("append starts at %lld", (long long)position);
        fill(data, (uint64_t)position + rank * 100, 100, 11);
        MUST(MPI_File_seek(file, rank * 100, MPI_SEEK_CUR));
        MUST(MPI_File_write_all(file, data, 100, MPI_BYTE, &status));
        MUST(MPI_File_close(&file));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    say_file("append", "append");
}

/* Each rank its own file, in pieces of many sizes; checked by the next rank, which uses plain system calls. */
static void file_per_process(void)
{
    enum { BYTES = 2500003 };
    char name[64];
    MPI_Status status;
    unsigned char *data = room(BYTES);
    snprintf(name, sizeof name, "own.%d", rank);
    MPI_File file = open_file(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL);
    fill(data, 0, BYTES, 20 + rank);
    int step = 1;
    for (int at = 0; at < BYTES;) {
        int count = step < BYTES - at ? step : BYTES - at;
        MUST(MPI_File_write(file, data + at, count, MPI_BYTE, &status));
        complete(name, &status, count);
        at += count;
        step = step * 5 % 300007 + 1;
    }
    MUST(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    int other = (rank + 1) % RANKS;
    snprintf(name, sizeof name, "own.%d", other);
    int fd = open(in(name), O_RDONLY);
    memset(data, 0xee, BYTES);
    int got = 0;
    for (ssize_t count; fd >= 0 && got < BYTES && (count = read(fd, data + got, BYTES - got)) > 0;)
        got += count;
    char more;
    if (fd < 0 || got != BYTES || read(fd, &more, 1) != 0)
        fail("%s: %d bytes of %d", name, got, BYTES);
    close(fd);
    check(name, data, 0, BYTES, 20 + other);
    uint32_t value = crc(0, data, BYTES), values[RANKS];
    MUST(MPI_Gather(&value, 1, MPI_UINT32_T, values, 1, MPI_UINT32_T, 0, MPI_COMM_WORLD));
    SAY("ok file per process %d bytes crc %08x %08x %08x %08x", BYTES, values[3], values[0], values[1], values[2]);
    free(data);
}

/* Reads a region of atomic mode: all of its bytes must come from one write. Returns that write's number. */
static int whole(MPI_File file, MPI_Offset offset, unsigned char *data, int count, const char *what)
{
    MPI_Status status;
    MUST(MPI_File_read_at(file, offset, data, count, MPI_BYTE, &status));
    complete(what, &status, count);
    for (int i = 1; i < count; i++)
        if (data[i] != data[0])
            fail("%s: torn: byte 0 is %d, byte %d is %d", what, data[0], i, data[i]);
    return data[0];
}

static void atomic(void)
{
    enum { ROUNDS = 40, REGION = 70001, WRITES = 30, PIECES = 20, PIECE = 501 };
    unsigned char *data = room(REGION);
    MPI_Status status;
    MPI_File file = open_file(MPI_COMM_WORLD, "atomic", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    MUST(MPI_File_set_size(file, 3 * REGION));
    MUST(MPI_File_set_atomicity(file, 1));
    int on = 0;
    MUST(MPI_File_get_atomicity(file, &on));
    MPI_Barrier(MPI_COMM_WORLD);
    /* Two pairs, each with a region. The players of a pair take turns and know it by what they read alone. */
    MPI_Offset mine = (MPI_Offset)(rank / 2) * REGION;
    for (int turn = 1; turn <= 2 * ROUNDS; turn++) {
        if (turn % 2 == rank % 2) {
            memset(data, turn, REGION);
            MUST(MPI_File_write_at(file, mine, data, REGION, MPI_BYTE, &status));
            complete("ping-pong", &status, REGION);
        } else {
            double begun = MPI_Wtime();
            for (int now; (now = whole(file, mine, data, REGION, "ping-pong")) != turn; sched_yield()) {
                if (now != turn - 1)
                    fail("ping-pong: turn %d while waiting for %d", now, turn);
                if (MPI_Wtime() - begun > 30)
                    fail("ping-pong: turn %d was never seen", turn);
            }
        }
    }
    SAY("ok atomic %d ping-pong %d turns of %d bytes", on, 2 * ROUNDS, REGION);
    /* All write the same range and read it: whoever won, it is one rank's whole write. */
    for (int i = 0; i < WRITES; i++) {
        memset(data, 1 + rank, REGION);
        MUST(MPI_File_write_at(file, 2 * REGION, data, REGION, MPI_BYTE, &status));
        int winner = whole(file, 2 * REGION, data, REGION, "overlapping writes");
        if (winner < 1 || winner > RANKS)
            fail("overlapping writes: %d", winner);
    }
    SAY("ok atomic overlapping writes");
    /* The same with holes: one call's many pieces are one atomic unit. */
    MPI_Datatype comb;
    MUST(MPI_Type_vector(PIECES, PIECE, 2 * PIECE, MPI_BYTE, &comb));
    MUST(MPI_Type_commit(&comb));
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, comb, "native", MPI_INFO_NULL));
    memset(data, 9, PIECES * PIECE);
    MUST(MPI_File_write_at_all(file, 0, data, PIECES * PIECE, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < WRITES; i++) {
        memset(data, 1 + rank, PIECES * PIECE);
        MUST(MPI_File_write_at(file, 0, data, PIECES * PIECE, MPI_BYTE, &status));
        int winner = whole(file, 0, data, PIECES * PIECE, "overlapping combs");
        if (winner < 1 || winner > RANKS)
            fail("overlapping combs: %d", winner);
    }
    MUST(MPI_Type_free(&comb));
    MUST(MPI_File_close(&file));
    SAY("ok atomic overlapping combs");
    free(data);
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
    snprintf(base, sizeof base, "%s/mpiio", argv[1]);
    if (rank == 0 && mkdir(base, 0755) != 0)
        fail("%s: %s", base, strerror(errno));
    MPI_Barrier(MPI_COMM_WORLD);
    collective();
    independent();
    asynchronous();
    shared_pointer();
    sizes();
    file_per_process();
    atomic();
    SAY("done");
    MPI_Finalize();
    return 0;
}
