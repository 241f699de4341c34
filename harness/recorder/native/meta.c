/*
 * Calls that change what is told of an object, calls that make it durable, and shared mappings.
 *
 * The value that came out is recorded, not the one that was asked for: the kernel masks modes and
 * rounds times. A sync that failed is recorded, since it says what may be lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "recorder.h"

#define ATTRIBUTE_MAX 65536
#define MAPPINGS 256

/* How an object is named by a call: a descriptor, or a path that follows a last link or not. */
struct way {
    int directory;
    const char *path; /* NULL: the descriptor itself */
    int flags;
};

static long look(const struct way *way, struct stat *st)
{
    if (!way->path)
        return stat_fd(way->directory, st);
    return stat_at(way->directory, way->path, st,
                   way->flags & (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
}

static void describe(struct record *record, enum kind kind, const struct stat *st)
{ /* 32 bytes never move a record */
    record->mode = st->st_mode;
    if (kind == K_CHOWN) {
        record->offset = st->st_uid;
        record->length = st->st_gid;
    }
    if (kind != K_UTIMES)
        return;
    int64_t times[4] = {st->st_atim.tv_sec, st->st_atim.tv_nsec, st->st_mtim.tv_sec,
                        st->st_mtim.tv_nsec};
    char *room = log_payload(&record, sizeof times);
    if (room)
        memcpy(room, times, sizeof times);
}

static long inode_call(struct call *call, enum kind kind, struct way way)
{
    struct stat st;
    if (is_off(kind) || look(&way, &st) || !object_of(&st))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(kind, call);
    if (record)
        record->a = object_id(object_of(&st));
    long result = perform(call);
    if (IS_ERROR(result) || look(&way, &st)) {
        log_cancel(record);
    } else if (record) {
        describe(record, kind, &st);
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

static long attribute_call(struct call *call, enum kind kind, struct way way, const char *name,
                           const void *value, size_t size)
{
    struct stat st;
    if (is_off(kind) || look(&way, &st) || !object_of(&st))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(kind, call);
    long result = perform(call);
    if (IS_ERROR(result) || size > ATTRIBUTE_MAX) {
        log_cancel(record);
    } else if (record) {
        record->a = object_id(object_of(&st));
        log_name(record, name, strnlen(name, 255));
        char *room = size ? log_payload(&record, size) : NULL;
        if (room)
            memcpy(room, value, size);
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

/* Syncs. */

static long sync_call(struct call *call, enum kind kind, int fd, uint32_t call_flags,
                      uint64_t offset, uint64_t length)
{
    struct stat st;
    int is_file = kind != K_SYNC && kind != K_SYNCFS;
    memset(&st, 0, sizeof st);
    if (is_off(kind) || (kind != K_SYNC && stat_fd(fd, &st)) || (is_file && !object_of(&st)) ||
        (kind == K_SYNCFS && (uint32_t)st.st_dev != log_header->root.device))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(kind, call);
    if (record) {
        record->a = is_file ? object_id(object_of(&st)) : log_header->root;
        record->mode = st.st_mode;
        record->call_flags = call_flags;
        record->offset = offset;
        record->length = length;
    }
    long result = perform(call);
    log_commit(record, result);
    log_unlock();
    return result;
}

/*
 * Shared mappings of this process and of those that it was forked from. One that can only be read
 * is kept in mind, since mprotect may make it writable.
 */
struct mapping {
    uint64_t start, end, offset;
    struct object object;
    uint32_t flags, mode;
    int is_told;
};
static struct mapping mappings[MAPPINGS];
static uint32_t mapping_next;

static void tell_mapping(struct mapping *mapping, struct record *record)
{
    mapping->is_told = 1;
    if (!record)
        return;
    record->a = mapping->object;
    record->offset = mapping->offset;
    record->length = mapping->end - mapping->start;
    record->flags = mapping->flags;
    record->mode = mapping->mode;
    log_commit(record, 0);
}

static long map_call(struct call *call)
{
    struct stat st;
    int fd = (int)call->a[4];
    if (is_off(K_MAPPING) || stat_fd(fd, &st) || !S_ISREG(st.st_mode) || !object_of(&st))
        return pass(call, 0);
    int is_writable = (call->a[2] & PROT_WRITE) != 0;
    log_lock();
    struct record *record = is_writable ? log_begin(K_MAPPING, call) : NULL;
    long result = perform(call);
    if (IS_ERROR(result)) {
        log_cancel(record);
    } else {
        struct mapping *mapping = &mappings[mapping_next++ % MAPPINGS];
        mapping->start = (uint64_t)result;
        mapping->end = (uint64_t)(result + call->a[1]);
        mapping->offset = (uint64_t)call->a[5];
        mapping->object = object_id(object_of(&st));
        mapping->flags = (uint32_t)call->a[3];
        mapping->mode = st.st_mode;
        mapping->is_told = 0;
        if (is_writable)
            tell_mapping(mapping, record);
    }
    log_unlock();
    return result;
}

static uint64_t hex_of(const char **text)
{
    uint64_t value = 0;
    for (; **text; ++*text) {
        char c = **text;
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            break;
    }
    return value;
}

/* Whether a shared mapping is there at all by now: addresses are used again. "START-END rw-s ..." */
static int is_shared_at(uint64_t address)
{
    long fd = stub4(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (IS_ERROR(fd))
        return 1;
    char block[1024], line[64];
    size_t used = 0;
    int found = 0, is_start = 1;
    long got;
    while (!found && (got = raw3(SYS_read, fd, block, sizeof block)) > 0)
        for (long i = 0; i < got && !found; i++) {
            if (is_start && used < sizeof line - 1)
                line[used++] = block[i];
            is_start = is_start && used < sizeof line - 1;
            if (block[i] != '\n')
                continue;
            line[used] = 0;
            const char *at = line;
            uint64_t start = hex_of(&at), end = *at == '-' ? (at++, hex_of(&at)) : 0;
            found = start <= address && address < end && !strncmp(at, " ", 1) && at[4] == 's';
            used = 0;
            is_start = 1;
        }
    stub1(SYS_close, fd);
    return found;
}

static long protect_call(struct call *call)
{
    uint64_t start = (uint64_t)call->a[0], end = start + (uint64_t)call->a[1];
    long result = perform(call);
    for (uint32_t i = 0; i < MAPPINGS && result == 0; i++) {
        struct mapping *mapping = &mappings[i];
        if (mapping->end <= start || mapping->start >= end || mapping->is_told || is_off(K_MAPPING) ||
            !is_shared_at(start > mapping->start ? start : mapping->start))
            continue;
        log_lock();
        tell_mapping(mapping, log_begin(K_MAPPING, call));
        log_unlock();
    }
    return result;
}

static long msync_call(struct call *call)
{
    uint64_t address = (uint64_t)call->a[0];
    uint32_t at = MAPPINGS;
    for (uint32_t i = 0; i < MAPPINGS; i++) /* the newest that holds the address */
        if (address >= mappings[i].start && address < mappings[i].end)
            at = i;
    if (is_off(K_MSYNC) || at == MAPPINGS)
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(K_MSYNC, call);
    if (record) {
        record->a = mappings[at].object;
        record->offset = address - mappings[at].start;
        record->length = (uint64_t)call->a[1];
        record->call_flags = (uint32_t)call->a[2];
    }
    long result = perform(call);
    log_commit(record, result);
    log_unlock();
    return result;
}

#define TEXT(number) ((const char *)a[number])
#define BY_FD(number) (struct way){(int)a[number], NULL, 0}
#define BY_PATH(number) (struct way){AT_FDCWD, TEXT(number), 0}
#define BY_LINK(number) (struct way){AT_FDCWD, TEXT(number), AT_SYMLINK_NOFOLLOW}
#define AT(flags) (struct way){(int)a[0], TEXT(1), (int)(flags)}

static long attribute_calls(struct call *call, int *known)
{
    const long *a = call->a;
    const void *value = (const void *)a[2];
    size_t size = (size_t)a[3];
    switch (call->nr) {
    case SYS_setxattr:
        return attribute_call(call, K_SETXATTR, BY_PATH(0), TEXT(1), value, size);
    case SYS_lsetxattr:
        return attribute_call(call, K_SETXATTR, BY_LINK(0), TEXT(1), value, size);
    case SYS_fsetxattr:
        return attribute_call(call, K_SETXATTR, BY_FD(0), TEXT(1), value, size);
    case SYS_removexattr:
        return attribute_call(call, K_REMOVEXATTR, BY_PATH(0), TEXT(1), NULL, 0);
    case SYS_lremovexattr:
        return attribute_call(call, K_REMOVEXATTR, BY_LINK(0), TEXT(1), NULL, 0);
    case SYS_fremovexattr:
        return attribute_call(call, K_REMOVEXATTR, BY_FD(0), TEXT(1), NULL, 0);
    }
    *known = 0;
    return 0;
}

static long inode_calls(struct call *call, int *known)
{
    const long *a = call->a;
    switch (call->nr) {
    case SYS_fchmod:
        return inode_call(call, K_CHMOD, BY_FD(0));
    case SYS_fchmodat:
        return inode_call(call, K_CHMOD, AT(0));
    case SYS_fchmodat2:
        return inode_call(call, K_CHMOD, AT(a[3]));
    case SYS_fchown:
        return inode_call(call, K_CHOWN, BY_FD(0));
    case SYS_fchownat:
        return inode_call(call, K_CHOWN, AT(a[4]));
    case SYS_utimensat:
        return inode_call(call, K_UTIMES, AT(a[3]));
#ifdef SYS_chmod
    case SYS_chmod:
        return inode_call(call, K_CHMOD, BY_PATH(0));
    case SYS_chown:
        return inode_call(call, K_CHOWN, BY_PATH(0));
    case SYS_lchown:
        return inode_call(call, K_CHOWN, BY_LINK(0));
    case SYS_utime:
    case SYS_utimes:
        return inode_call(call, K_UTIMES, BY_PATH(0));
    case SYS_futimesat:
        return inode_call(call, K_UTIMES, AT(0));
#endif
    }
    *known = 0;
    return 0;
}

long meta_call(struct call *call, int *known)
{
    const long *a = call->a;
    *known = 1;
    switch (call->nr) {
    case SYS_fsync:
        return sync_call(call, K_FSYNC, (int)a[0], 0, 0, 0);
    case SYS_fdatasync:
        return sync_call(call, K_FDATASYNC, (int)a[0], 0, 0, 0);
    case SYS_sync:
        return sync_call(call, K_SYNC, -1, 0, 0, 0);
    case SYS_syncfs:
        return sync_call(call, K_SYNCFS, (int)a[0], 0, 0, 0);
    case SYS_sync_file_range:
        return sync_call(call, K_SYNC_RANGE, (int)a[0], (uint32_t)a[3], (uint64_t)a[1],
                         (uint64_t)a[2]);
    case SYS_msync:
        return msync_call(call);
    case SYS_mmap:
        return map_call(call);
    case SYS_mprotect:
        return protect_call(call);
    case SYS_setxattrat:
    case SYS_removexattrat:
        return -ENOSYS; /* of Linux 6.13: callers fall back to the older calls */
    }
    long result = inode_calls(call, known);
    if (*known)
        return result;
    *known = 1;
    return attribute_calls(call, known);
}
