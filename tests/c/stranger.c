/* A program into which no library can be loaded: linked statically. What it does goes to the kernel.
 *
 * stranger write WHO COUNT   writes so many records to standard output
 * stranger map PATH          maps a file and prints its last record; again after a line of input; changes it after another
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIZE = 100 };

static int write_records(int who, int count)
{
    for (int number = 0; number < count; number++) {
        char record[SIZE + 1];
        int length = snprintf(record, sizeof record, "%d:%06d:", who, number);
        memset(record + length, 'x', SIZE - 1 - length);
        record[SIZE - 1] = '\n';
        if (write(1, record, SIZE) != SIZE)
            return 1;
    }
    return 0;
}

static int show(const char *path)
{
    int fd = open(path, O_RDWR);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        return 1;
    char *file = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return 1;
    char *last = file + stat.st_size - SIZE;
    for (int turn = 0; turn < 2; turn++) {
        fwrite(last, SIZE, 1, stdout);
        fflush(stdout);
        if (getchar() != '\n')
            return 1;
    }
    *last = '!';
    puts("changed");
    fflush(stdout);
    getchar();
    return 0;
}

int main(int count, char **words)
{
    if (count == 4 && strcmp(words[1], "write") == 0)
        return write_records(atoi(words[2]), atoi(words[3]));
    if (count == 3 && strcmp(words[1], "map") == 0)
        return show(words[2]);
    return 2;
}
