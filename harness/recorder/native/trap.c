/*
 * The handler of SIGSYS: where every trapped call arrives, is looked at, made and recorded.
 *
 * All signals are blocked while it runs: a handler of the program's that made a trapped call while
 * the log's lock is held would wait for itself. A call that may keep the caller waiting is made
 * with the caller's own mask, and without the lock, so that signals interrupt it as ever.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "recorder.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define PAGE 4096
#define TMPFILE 020000000

long perform(const struct call *call)
{
    const long *a = call->a;
    return stub6(call->nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

long pass(const struct call *call, int may_block)
{
    if (may_block)
        raw4(SYS_rt_sigprocmask, SIG_SETMASK, &call->uc->uc_sigmask, 0, 8);
    return perform(call);
}

int is_off(enum kind kind)
{
    return !log_is_whole() || !shared->is_active || shared->options & OPT_NO_CALLS ||
           (shared->disabled[kind / 64] >> (kind % 64) & 1);
}

/* Returns 1 and the result where it is one of the calls of determinism. */
static int is_determined(const struct call *call, long *result)
{
    const long *a = call->a;
    switch (call->nr) {
    case SYS_getrandom:
        *result = random_call(call);
        return 1;
    case SYS_clock_gettime:
    case SYS_gettimeofday:
#ifdef SYS_time
    case SYS_time:
#endif
        *result = clock_call(call);
        return 1;
    case SYS_openat:
        *result = random_file((const char *)a[1], (uint64_t)a[2]);
        return *result != 0;
#ifdef SYS_open
    case SYS_open:
        *result = random_file((const char *)a[0], (uint64_t)a[1]);
        return *result != 0;
#endif
    }
    return 0;
}

static int is_reading_open(const struct call *call)
{
    uint64_t bits = O_ACCMODE | O_CREAT | O_TRUNC | TMPFILE;
#ifdef SYS_open
    if (call->nr == SYS_open)
        return !((uint64_t)call->a[1] & bits);
#endif
    return call->nr == SYS_openat && !((uint64_t)call->a[2] & bits);
}

static long answer(struct call *call)
{
    int known = 0;
    long result = 0;
    if (is_determined(call, &result))
        return result;
    result = process_call(call, &known);
    if (known)
        return result;
    if (is_reading_open(call) || !log_is_whole() || !shared->is_active ||
        shared->options & OPT_NO_CALLS)
        return pass(call, 1);
    result = data_call(call, &known);
    if (!known)
        result = name_call(call, &known);
    if (!known)
        result = meta_call(call, &known);
    return known ? result : pass(call, 1);
}

static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    if (info->si_code != 1 /* SYS_SECCOMP */)
        return; /* somebody sent the signal by hand */
    struct call call;
    call.uc = context;
    read_arguments(context, &call.nr, call.a);
    set_result(context, answer(&call));
}

int handler_install(void)
{
    static const unsigned char code[] = STUB_CODE;
    static int is_installed; /* by a start that failed later on */
    if (is_installed)
        return 0;
    long page = raw6(SYS_mmap, (long)STUB_AT, PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page != (long)STUB_AT)
        return IS_ERROR(page) ? (int)page : -EEXIST;
    memcpy((void *)page, code, sizeof code);
    __builtin___clear_cache((char *)page, (char *)page + sizeof code);
    long failed = raw3(SYS_mprotect, page, PAGE, PROT_READ | PROT_EXEC);
    if (failed)
        return (int)failed;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    memset(&action.sa_mask, 0xff, sizeof action.sa_mask);
    if (sigaction(SIGSYS, &action, NULL))
        return -EINVAL;
    is_installed = 1;
    uint64_t unblocked = 1ull << (SIGSYS - 1);
    return (int)raw4(SYS_rt_sigprocmask, SIG_UNBLOCK, &unblocked, 0, 8);
}
