/* The disk's ceiling: a stream of writes that are each durable when they return, and nothing else.
 *
 *   rawdisk DIRECTORY BLOCK_BYTES FILE_BYTES SECONDS PAUSE_US FILLED
 *
 * Makes a file in DIRECTORY, then writes blocks of BLOCK_BYTES one after the other from its beginning, each after a pause, as a disk
 * has between the requests of an idle client; through O_DIRECT|O_DSYNC (O_DSYNC alone where the file system has no O_DIRECT). FILLED 1:
 * the file is of zeros, and is written again and again. FILLED 0: its room is only allocated, and written once, as a log has it that
 * keeps what it is given. The file is unlinked at once. BLOCK_BYTES must be a multiple of 4096. Prints one JSON object.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: rawdisk DIRECTORY BLOCK_BYTES FILE_BYTES SECONDS PAUSE_US FILLED\n");
        return 2;
    }
    size_t block = (size_t)atol(argv[2]), file_bytes = (size_t)atol(argv[3]);
    double limit = atof(argv[4]);
    useconds_t pause_us = (useconds_t)atol(argv[5]);
    int filled = atoi(argv[6]);
    char path[4096];
    snprintf(path, sizeof path, "%s/rawdisk.%d", argv[1], (int)getpid());
    int direct = 1, fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_DSYNC, 0600);
    if (fd < 0 && errno == EINVAL) {
        direct = 0;
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DSYNC, 0600);
    }
    if (fd < 0) die(path);
    unlink(path);
    size_t step = 4u << 20;
    void *zeros, *data;
    if (posix_memalign(&zeros, 4096, step) || posix_memalign(&data, 4096, block)) die("memory");
    memset(zeros, 0, step);
    memset(data, 0x5a, block);
    if (posix_fallocate(fd, 0, (off_t)file_bytes)) die("posix_fallocate");
    for (size_t at = 0; filled && at < file_bytes; at += step)
        if (pwrite(fd, zeros, step, (off_t)at) != (ssize_t)step) die("pwrite");
    if (fsync(fd)) die("fsync");
    size_t room = 1u << 20, count = 0;
    double *each = calloc(room, sizeof *each), start = now(), last = start;
    for (size_t at = 0; last - start < limit && count < room; count++) {
        if (at + block > file_bytes) {
            if (!filled) break;
            at = 0;
        }
        if (pause_us) {
            usleep(pause_us);
            last = now();
        }
        if (pwrite(fd, data, block, (off_t)at) != (ssize_t)block) die("pwrite");
        at += block;
        double t = now();
        each[count] = t - last;
        last = t;
    }
    qsort(each, count, sizeof *each, by_value);
    printf("{\"direct\": %d, \"writes\": %zu, \"seconds\": %.6f, \"bytes_per_s\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", direct, count,
           last - start, (double)(count * block) / (last - start), each[count / 2] * 1e6, each[(size_t)((double)count * 0.99)] * 1e6);
    return 0;
}
