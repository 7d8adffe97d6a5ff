/*
 * A wrong wall clock for the programs of one virtual node, through /etc/ld.so.preload.
 *
 * The number of seconds stands in /run/clock-offset. Only the wall clock moves:
 * monotonic clocks, sleeps and file times stay right. 64-bit Linux only.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double offset_s;

__attribute__((constructor)) static void read_offset(void) {
    FILE *file = fopen("/run/clock-offset", "r");
    if (!file) return;
    if (fscanf(file, "%lf", &offset_s) != 1) offset_s = 0;
    fclose(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long whole = (long)offset_s, nanoseconds = (long)((offset_s - (double)whole) * 1e9);
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    now->tv_sec += whole;
    now->tv_nsec += nanoseconds;
    if (now->tv_nsec >= 1000000000L) now->tv_nsec -= 1000000000L, now->tv_sec++;
    if (now->tv_nsec < 0) now->tv_nsec += 1000000000L, now->tv_sec--;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result) *result = precise.tv_sec;
    return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}
