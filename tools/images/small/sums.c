/* Sums of files, where sha256 costs an emulated processor seconds for what a host does in a tenth of one.
 *
 *   sums             prints the sum of its standard input
 *   sums FILE...     prints a line "SUM  FILE" for each
 *   sums -c LIST     checks such lines; prints the first file that differs, and ends with 1
 *
 * A sum is 64 bits of all bytes and their places. It is there to find bytes that are wrong by accident, and is no
 * protection from anybody. Without stdio, which a guest would read from its disk.
 */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static unsigned char buffer[1 << 17] __attribute__((aligned(8)));

/* Read until the buffer is full or the file ends, so that all words but the last one are whole. */
static ssize_t fill(int fd)
{
    size_t have = 0;
    while (have < sizeof buffer) {
        ssize_t got = read(fd, buffer + have, sizeof buffer - have);
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        have += got;
    }
    return have;
}

static int sum_of(int fd, uint64_t *sum)
{
    uint64_t hash = 0x9e3779b97f4a7c15ULL, length = 0;
    ssize_t have;
    while ((have = fill(fd)) > 0) {
        memset(buffer + have, 0, (8 - have % 8) % 8);
        for (const uint64_t *word = (const uint64_t *)buffer; (const unsigned char *)word < buffer + have; word++) {
            hash = (hash ^ *word) * 0xff51afd7ed558ccdULL;
            hash ^= hash >> 32;
        }
        length += have;
    }
    hash = (hash ^ length) * 0xc4ceb9fe1a85ec53ULL;
    *sum = hash ^ (hash >> 29);
    return have < 0;
}

static void print(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(2);
}

static void print_sum(uint64_t sum)
{
    char text[17];
    for (int digit = 0; digit < 16; digit++)
        text[digit] = "0123456789abcdef"[sum >> (60 - 4 * digit) & 15];
    text[16] = 0;
    print(text);
}

static int sum_file(const char *path, uint64_t *sum)
{
    int fd = open(path, O_RDONLY), wrong;
    if (fd < 0)
        return 1;
    wrong = sum_of(fd, sum);
    close(fd);
    return wrong;
}

static uint64_t parse(const char *digits)
{
    uint64_t sum = 0;
    for (int place = 0; place < 16; place++)
        sum = sum << 4 | (digits[place] <= '9' ? digits[place] - '0' : digits[place] - 'a' + 10);
    return sum;
}

static int check(const char *list)
{
    static char lines[1 << 17];
    uint64_t sum;
    int fd = open(list, O_RDONLY), checked = 0;
    ssize_t size = fd < 0 ? -1 : read(fd, lines, sizeof lines - 1);
    if (size <= 0 || size == sizeof lines - 1)
        return 2;
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (end - line < 19 || sum_file(line + 18, &sum) || sum != parse(line)) {
            print(line);
            print("\n");
            return 1;
        }
        checked++;
    }
    return checked ? 0 : 2;
}

int main(int count, char **argument)
{
    uint64_t sum;
    if (count == 3 && !strcmp(argument[1], "-c"))
        return check(argument[2]);
    if (count == 1) {
        if (sum_of(0, &sum))
            return 1;
        print_sum(sum);
        print("\n");
    }
    for (int number = 1; number < count; number++) {
        if (sum_file(argument[number], &sum))
            return 1;
        print_sum(sum);
        print("  ");
        print(argument[number]);
        print("\n");
    }
    return 0;
}
