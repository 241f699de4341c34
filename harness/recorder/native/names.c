/*
 * Calls that change names: open that creates or truncates, rename, link, unlink and their kin.
 *
 * Open is judged afterwards, by what it opened: only the kernel knows how it resolves. The others
 * never follow a link in the last component, so that folder and entry are known before.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "recorder.h"

#define TMPFILE 020000000
#define ADOPT_DEPTH 20
#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

static int has_tmpfile(uint64_t flags)
{
    return (flags & TMPFILE) != 0; /* the bit alone: libc's O_TMPFILE has O_DIRECTORY in it */
}

static enum kind kind_of_open(int is_there, uint64_t flags)
{
    return has_tmpfile(flags) ? K_TMPFILE : is_there ? K_OPEN : K_CREATE;
}

/* Begun before the call where it will probably be one of ours, so that a death in it shows. */
static struct record *begin_open(struct call *call, int directory, const char *path,
                                 uint64_t flags, const struct stat *before)
{
    struct place place = {.name = NULL, .size = 0};
    enum kind kind = kind_of_open(before != NULL, flags);
    if (is_off(kind) || !(before ? object_of(before) != NULL : place_find(directory, path, &place)))
        return NULL;
    struct record *record = log_begin(kind, call);
    if (!record)
        return NULL;
    record->flags = (uint32_t)flags;
    record->a = kind == K_OPEN ? object_id(object_of(before)) : record->a;
    record->length = kind == K_OPEN ? (uint64_t)before->st_size : 0; /* before a truncation */
    record->to = place.folder;
    if (place.name)
        log_name(record, place.name, place.size);
    return record;
}

static void opened(struct call *call, struct record *record, long fd, const struct stat *st)
{
    if (!record)
        return;
    record->call = (uint16_t)call->nr;
    record->kind = K_OPEN;
    record->a = object_id(object_of(st));
    record->mode = st->st_mode;
    log_commit(record, fd);
}

static void created(struct call *call, struct record *record, long fd, const struct stat *st,
                    uint64_t flags)
{
    char path[4096];
    struct place place = {.name = NULL, .size = 0};
    enum kind kind = kind_of_open(0, flags);
    int found = place_of_descriptor((int)fd, path, sizeof path, &place);
    if (found <= 0 || is_off(kind)) {
        log_cancel(record);
        if (found < 0)
            log_gap(call, "a file was created, and /proc does not say where");
        return;
    }
    if (!record)
        record = log_begin(kind, call);
    if (!record)
        return;
    record->size = RECORD_SIZE;
    record->name_size = 0;
    record->kind = (uint8_t)kind;
    record->a = object_id(object_add(st));
    record->flags = (uint32_t)flags;
    record->mode = st->st_mode;
    record->length = 0;
    record->to = place.folder; /* for a file without a name: the folder it was made for */
    if (kind == K_CREATE)
        log_name(record, place.name, place.size);
    log_commit(record, fd);
}

long open_call(struct call *call, int directory, const char *path, uint64_t flags)
{
    struct stat before, after;
    int is_nofollow = flags & O_NOFOLLOW || (flags & O_EXCL && flags & O_CREAT);
    int follow = is_nofollow ? AT_SYMLINK_NOFOLLOW : 0;
    long found = flags & O_PATH ? -EINVAL : stat_at(directory, path, &before, follow);
    int is_there = found == 0;
    if ((found && found != -ENOENT) ||
        (is_there && !S_ISREG(before.st_mode) && !has_tmpfile(flags)) ||
        (is_there && S_ISREG(before.st_mode) && !object_of(&before)) ||
        (!is_there && !(flags & O_CREAT)))
        return pass(call, 1);
    log_lock();
    is_there = stat_at(directory, path, &before, follow) == 0; /* again: now nobody else is at it */
    if (is_there && !S_ISREG(before.st_mode) && !has_tmpfile(flags)) {
        log_unlock();
        return pass(call, 1);
    }
    struct record *record = begin_open(call, directory, path, flags, is_there ? &before : NULL);
    long fd = perform(call);
    if (!IS_ERROR(fd) && stat_fd((int)fd, &after) == 0 && S_ISREG(after.st_mode)) {
        int is_old = is_there && !has_tmpfile(flags) && before.st_ino == after.st_ino &&
                     before.st_dev == after.st_dev;
        if (is_old && object_of(&after))
            opened(call, record, fd, &after);
        else
            created(call, record, fd, &after, flags);
    } else {
        log_cancel(record);
    }
    log_unlock();
    return fd;
}

/* An object that lost a name: with the last one it is an orphan, for as long as it is held. */
static void forget_name(const struct stat *st)
{
    struct slot *slot = object_of(st);
    if (slot && (S_ISDIR(st->st_mode) || st->st_nlink <= 1))
        slot->status = S_ISDIR(st->st_mode) ? S_GONE : S_ORPHAN;
}

static long rename_call(struct call *call, int from, const char *old, int to, const char *new,
                        uint32_t flags)
{
    struct place source, target;
    int is_out = place_find(from, old, &source), is_in = place_find(to, new, &target);
    if (is_off(K_RENAME) || (!is_out && !is_in))
        return pass(call, 0);
    struct stat moved, replaced;
    log_lock();
    if (stat_at(from, old, &moved, AT_SYMLINK_NOFOLLOW)) {
        long result = perform(call);
        log_unlock();
        return result;
    }
    int has_target = stat_at(to, new, &replaced, AT_SYMLINK_NOFOLLOW) == 0;
    struct object none = {0, 0, 0};
    if ((!is_out || !is_in) && flags & RENAME_EXCHANGE)
        log_gap(call, "two names were exchanged, one of them outside of the root");
    else if (!is_out && object_adopt(from, old, none, K_ADOPT, ADOPT_DEPTH, 1))
        log_gap(call, "what was moved into the root cannot be read");
    struct record *record = log_begin(K_RENAME, call);
    if (record) {
        record->a = object_id(object_of(&moved));
        record->b = has_target ? object_id(object_of(&replaced)) : none;
        record->from = source.folder;
        record->to = target.folder;
        record->flags = flags;
        record->mode = moved.st_mode;
        log_name(record, is_out ? source.name : "", is_out ? source.size : 0);
        log_second(record, is_in ? target.name : "", is_in ? target.size : 0);
    }
    long result = perform(call);
    int is_same = has_target && moved.st_ino == replaced.st_ino && moved.st_dev == replaced.st_dev;
    if (IS_ERROR(result)) {
        log_cancel(record);
    } else {
        log_commit(record, result);
        if (has_target && !is_same && !(flags & RENAME_EXCHANGE))
            forget_name(&replaced);
        if (is_out && !is_in && object_leave(to, new, ADOPT_DEPTH))
            log_gap(call, "what was moved out of the root cannot be read");
    }
    log_unlock();
    return result;
}

static int adopt_source(int from, const char *old, int flags)
{
    struct object none = {0, 0, 0};
    char link[32];
    if (flags & AT_EMPTY_PATH && old[0] == 0) {
        number_path(link, "/proc/self/fd/", from);
        char path[4096]; /* O_NOFOLLOW: the link of /proc must be read first */
        long size = raw4(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
        path[size > 0 ? size : 0] = 0;
        return object_adopt(AT_FDCWD, path, none, K_ADOPT, 1, 1);
    }
    return object_adopt(from, old, none, K_ADOPT, 1, 1);
}

static long link_call(struct call *call, int from, const char *old, int to, const char *new,
                      int flags)
{
    struct place target;
    struct stat st;
    int follow = (flags & AT_SYMLINK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW) | (flags & AT_EMPTY_PATH);
    if (is_off(K_LINK) || !place_find(to, new, &target) || stat_at(from, old, &st, follow))
        return pass(call, 0);
    log_lock();
    if (!object_find((uint32_t)st.st_dev, st.st_ino) && adopt_source(from, old, flags))
        log_gap(call, "what was linked into the root cannot be read");
    struct record *record = log_begin(K_LINK, call);
    struct slot *slot = object_find((uint32_t)st.st_dev, st.st_ino);
    if (record) {
        record->a = object_id(slot);
        record->to = target.folder;
        record->flags = (uint32_t)flags;
        record->mode = st.st_mode;
        log_name(record, target.name, target.size);
    }
    long result = perform(call);
    if (IS_ERROR(result)) {
        log_cancel(record);
    } else {
        if (slot)
            slot->status = S_LIVE; /* O_TMPFILE, or an orphan that got a name again */
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

static long remove_call(struct call *call, enum kind kind, int directory, const char *path)
{
    struct place place;
    struct stat st = {0};
    if (is_off(kind) || !place_find(directory, path, &place))
        return pass(call, 0);
    log_lock();
    struct record *record = NULL;
    if (stat_at(directory, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        record = log_begin(kind, call);
    if (record) {
        record->a = object_id(object_of(&st));
        record->from = place.folder;
        record->mode = st.st_mode;
        record->length = kind == K_UNLINK ? st.st_nlink - 1 : 0;
        log_name(record, place.name, place.size);
    }
    long result = perform(call);
    if (IS_ERROR(result)) {
        log_cancel(record);
    } else {
        forget_name(&st);
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

/* mkdir, symlink, mknod: a new object, which is looked at afterwards. */
static long make_call(struct call *call, enum kind kind, int directory, const char *path,
                      const char *target)
{
    struct place place;
    struct stat st;
    if (is_off(kind) || !place_find(directory, path, &place))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(kind, call);
    long result = perform(call);
    if (IS_ERROR(result) || stat_at(directory, path, &st, AT_SYMLINK_NOFOLLOW)) {
        log_cancel(record);
    } else if (record) {
        record->a = object_id(object_add(&st));
        record->to = place.folder;
        record->mode = st.st_mode;
        record->length = st.st_rdev;
        log_name(record, place.name, place.size);
        size_t size = target ? strlen(target) : 0;
        char *room = size ? log_payload(&record, size) : NULL;
        if (room)
            memcpy(room, target, size);
        log_commit(record, result);
    }
    log_unlock();
    return result;
}

#define HERE AT_FDCWD

/* A socket with a path makes a name; one in the abstract space does not. */
static long bind_call(struct call *call)
{
    const struct sockaddr_un *address = (const struct sockaddr_un *)call->a[1];
    char path[sizeof address->sun_path + 1] = {0};
    size_t size = (size_t)call->a[2], start = offsetof(struct sockaddr_un, sun_path);
    if (!address || size <= start || size > sizeof *address || address->sun_family != AF_UNIX ||
        !address->sun_path[0])
        return pass(call, 0);
    memcpy(path, address->sun_path, size - start);
    return make_call(call, K_MKNOD, HERE, path, NULL);
}

#define TEXT(number) ((const char *)a[number])

long name_call(struct call *call, int *known)
{
    const long *a = call->a;
    *known = 1;
    switch (call->nr) {
    case SYS_openat:
        return open_call(call, (int)a[0], TEXT(1), (uint64_t)a[2] & 0xffffffff);
    case SYS_openat2: /* struct open_how begins with the flags */
        if (!a[2] || a[3] < 24)
            return pass(call, 0);
        return open_call(call, (int)a[0], TEXT(1), *(const uint64_t *)a[2]);
    case SYS_renameat2:
        return rename_call(call, (int)a[0], TEXT(1), (int)a[2], TEXT(3), (uint32_t)a[4]);
#ifdef SYS_renameat
    case SYS_renameat:
        return rename_call(call, (int)a[0], TEXT(1), (int)a[2], TEXT(3), 0);
#endif
    case SYS_bind:
        return bind_call(call);
    case SYS_linkat:
        return link_call(call, (int)a[0], TEXT(1), (int)a[2], TEXT(3), (int)a[4]);
    case SYS_unlinkat:
        return remove_call(call, a[2] & AT_REMOVEDIR ? K_RMDIR : K_UNLINK, (int)a[0], TEXT(1));
    case SYS_mkdirat:
        return make_call(call, K_MKDIR, (int)a[0], TEXT(1), NULL);
    case SYS_symlinkat:
        return make_call(call, K_SYMLINK, (int)a[1], TEXT(2), TEXT(0));
    case SYS_mknodat:
        return make_call(call, K_MKNOD, (int)a[0], TEXT(1), NULL);
#ifdef SYS_open
    case SYS_open:
        return open_call(call, HERE, TEXT(0), (uint64_t)a[1] & 0xffffffff);
    case SYS_creat:
        return open_call(call, HERE, TEXT(0), O_CREAT | O_WRONLY | O_TRUNC);
    case SYS_rename:
        return rename_call(call, HERE, TEXT(0), HERE, TEXT(1), 0);
    case SYS_link:
        return link_call(call, HERE, TEXT(0), HERE, TEXT(1), 0);
    case SYS_unlink:
        return remove_call(call, K_UNLINK, HERE, TEXT(0));
    case SYS_rmdir:
        return remove_call(call, K_RMDIR, HERE, TEXT(0));
    case SYS_mkdir:
        return make_call(call, K_MKDIR, HERE, TEXT(0), NULL);
    case SYS_symlink:
        return make_call(call, K_SYMLINK, HERE, TEXT(1), TEXT(0));
    case SYS_mknod:
        return make_call(call, K_MKNOD, HERE, TEXT(0), NULL);
#endif
    }
    *known = 0;
    return 0;
}
