/*
 * What keeps the recorder alive, and what is told of descriptors and processes.
 *
 * SIGSYS must never be blocked, or the next trapped call kills. glibc blocks all signals where it
 * makes threads and processes, by calls of its own that no interposed symbol would see: they are
 * trapped and answered here. A program that is started gets the library through LD_PRELOAD, which
 * is added to whatever environment it is given.
 *
 * Limits: ppoll, pselect, epoll_pwait and sigsuspend with a mask that blocks SIGSYS, for as long
 * as they wait; static programs and those of another machine, which die of SIGSYS, loudly.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>

#include "recorder.h"

#define SIGNAL_BIT(number) (1ull << ((number) - 1))
#define ENVIRONMENT_MAX 8192
#define TEXT_MAX 8192

struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static uint64_t *mask_of(const struct call *call)
{
    return (uint64_t *)&call->uc->uc_sigmask;
}

/* Done on the mask that returning from this handler will set. */
static long mask_call(struct call *call)
{
    const uint64_t *set = (const uint64_t *)call->a[1];
    uint64_t *old = (uint64_t *)call->a[2], mask = *mask_of(call), now = mask;
    uint64_t never = SIGNAL_BIT(SIGSYS) | SIGNAL_BIT(SIGKILL) | SIGNAL_BIT(SIGSTOP);
    if (call->a[3] != 8)
        return -EINVAL;
    if (set) {
        switch (call->a[0]) {
        case SIG_BLOCK:
            now = mask | *set;
            break;
        case SIG_UNBLOCK:
            now = mask & ~*set;
            break;
        case SIG_SETMASK:
            now = *set;
            break;
        default:
            return -EINVAL;
        }
    }
    if (old)
        *old = mask;
    *mask_of(call) = now & ~never;
    return 0;
}

static long action_call(struct call *call)
{
    struct kernel_action *old = (struct kernel_action *)call->a[2];
    if (call->a[0] == SIGSYS) {
        if (old)
            memset(old, 0, sizeof *old);
        return 0;
    }
    struct kernel_action action = *(const struct kernel_action *)call->a[1];
    action.mask &= ~SIGNAL_BIT(SIGSYS);
    return stub4(call->nr, call->a[0], &action, old, call->a[3]);
}

/* Descriptors. */

static long close_call(struct call *call)
{
    struct stat st;
    int fd = (int)call->a[0];
    if (!log_is_whole() || !shared->is_active || is_off(K_CLOSE) || stat_fd(fd, &st) ||
        !object_of(&st))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(K_CLOSE, call);
    if (record) {
        record->a = object_id(object_of(&st));
        record->flags = (uint32_t)raw2(SYS_fcntl, fd, F_GETFL);
        record->mode = st.st_mode;
        record->offset = (uint64_t)fd;
    }
    long result = perform(call);
    log_commit(record, result);
    log_unlock();
    return result;
}

static long range_call(struct call *call)
{
    if (log_is_whole() && shared->is_active && !is_off(K_CLOSE)) {
        log_lock();
        struct record *record = log_begin(K_CLOSE, call);
        if (record) { /* object 0: every descriptor from offset to length */
            record->offset = (uint64_t)call->a[0];
            record->length = (uint64_t)call->a[1];
            record->call_flags = (uint32_t)call->a[2];
            log_commit(record, 0);
        }
        log_unlock();
    }
    return pass(call, 0);
}

static long dup_call(struct call *call)
{
    struct stat st;
    int fd = (int)call->a[0];
    if (!log_is_whole() || !shared->is_active || is_off(K_DUP) || stat_fd(fd, &st) ||
        !object_of(&st))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(K_DUP, call);
    long result = perform(call);
    if (IS_ERROR(result)) {
        log_cancel(record);
    } else if (record) {
        record->a = object_id(object_of(&st));
        record->mode = st.st_mode;
        record->offset = (uint64_t)fd;
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

/* Processes. */

static void log_simple(struct call *call, enum kind kind, const char *text)
{
    if (!log_is_whole() || !shared->is_active || is_off(kind))
        return;
    log_lock();
    struct record *record = log_begin(kind, call);
    if (record) {
        size_t size = strnlen(text, 4095);
        char *room = size ? log_payload(&record, size) : NULL;
        if (room)
            memcpy(room, text, size);
        record->offset = kind == K_EXIT ? (uint64_t)call->a[0] : 0;
        log_commit(record, 0);
    }
    log_unlock();
    if (kind == K_EXIT) {
        uint32_t me = (uint32_t)raw0(SYS_getpid);
        for (uint32_t i = 0; i < PROCESS_SLOTS; i++)
            if (shared->process[i] == me)
                shared->process[i] = UINT32_MAX; /* the number may be used again */
    }
}

static int begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* "NAME=FIRST" or, where the program has one of its own, "NAME=FIRST:OWN". */
static int join(char *text, const char *name, const char *first, const char *own)
{
    size_t n = strlen(name), f = strlen(first), o = own ? strlen(own) + 1 : 0;
    if (n + f + o + 1 > TEXT_MAX)
        return 0;
    memcpy(text, name, n);
    memcpy(text + n, first, f + 1);
    if (own) {
        text[n + f] = ':';
        memcpy(text + n + f + 1, own, o);
    }
    return 1;
}

#define PRELOAD "LD_PRELOAD="
#define RECORDER "CRASHCONFORM_RECORDER="

static long exec_call(struct call *call, int path_at, int environment_at)
{
    const char *path = (const char *)call->a[path_at];
    char **given = (char **)call->a[environment_at];
    size_t count = 0;
    const char *own = NULL;
    int directory = path_at ? (int)call->a[0] : AT_FDCWD;
    if (!shared || raw4(SYS_faccessat, directory, path, 1, 0) != 0)
        return pass(call, 1);
    log_simple(call, K_EXEC, path);
    while (given && given[count] && count < ENVIRONMENT_MAX)
        count++;
    char *environment[count + 3];
    char preload[strlen(shared->library) + TEXT_MAX / 4], recorder[STATE_PATH_MAX + 32];
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (begins(given[i], PRELOAD))
            own = given[i] + strlen(PRELOAD);
        else if (!begins(given[i], RECORDER))
            environment[kept++] = given[i];
    }
    if (own && (begins(own, shared->library) || !*own || strlen(own) > TEXT_MAX / 8))
        own = NULL;
    if (!join(preload, PRELOAD, shared->library, own) ||
        !join(recorder, RECORDER, shared->log_path, NULL))
        return -E2BIG;
    environment[kept++] = preload;
    environment[kept++] = recorder;
    environment[kept] = NULL;
    struct call now = *call;
    now.a[environment_at] = (long)environment;
    return pass(&now, 1);
}

long process_call(struct call *call, int *known)
{
    *known = 1;
    switch (call->nr) {
    case SYS_rt_sigprocmask:
        return mask_call(call);
    case SYS_rt_sigaction:
        return action_call(call);
    case SYS_close:
        return close_call(call);
    case SYS_close_range:
        return range_call(call);
    case SYS_fcntl: /* F_DUPFD and F_DUPFD_CLOEXEC */
    case SYS_dup:
    case SYS_dup3:
#ifdef SYS_dup2
    case SYS_dup2:
#endif
        return dup_call(call);
    case SYS_execve:
        return exec_call(call, 0, 2);
    case SYS_execveat:
        return exec_call(call, 1, 3);
    case SYS_exit_group:
        log_simple(call, K_EXIT, "");
        return perform(call);
    }
    *known = 0;
    return 0;
}
