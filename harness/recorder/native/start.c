/*
 * Where recording begins and ends: the functions that Python calls, and the constructor of a
 * program that a recorded process started.
 *
 * The filter cannot be taken back: once a process was recorded, stopping means that its calls are
 * let through unlogged. Hence a child is forked for each recording.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "recorder.h"

#define STATE_SUFFIX ".state"
#define STATE_MAGIC "CCSTATE"
#define WALK_DEPTH 200
#define RECORDER "CRASHCONFORM_RECORDER="

struct config {
    const char *root, *log_path, *library;
    uint64_t log_size_max, slots, seed, clock_start, clock_tick, disabled[2];
    uint32_t options;
};

static const char *stage = "";

/* Where recorder_start failed, in words that end a sentence. */
EXPORT const char *recorder_stage(void)
{
    return stage;
}

/* 0, or the negative error that says that the kernel refuses. */
EXPORT int recorder_supported(void)
{
    uint32_t action = SECCOMP_RET_TRAP;
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        return -ENOSYS;
    return (int)raw3(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
}

static int state_path(char *path, const char *log_path)
{
    size_t size = strlen(log_path);
    if (size + sizeof STATE_SUFFIX > STATE_PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(path, log_path, size);
    memcpy(path + size, STATE_SUFFIX, sizeof STATE_SUFFIX);
    return 0;
}

/* Opens through the stub: in a started program the filter stands already. */
static long map_file(const char *path, int flags, uint64_t grow, uint64_t size)
{
    long fd = stub4(SYS_openat, AT_FDCWD, path, flags | O_RDWR | O_CLOEXEC, 0600);
    if (IS_ERROR(fd))
        return fd;
    long result = grow ? stub2(SYS_ftruncate, fd, grow) : 0;
    if (!result)
        result = stub6(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE, fd, 0);
    stub1(SYS_close, fd);
    return result;
}

static int create_files(const struct config *config)
{
    char path[STATE_PATH_MAX];
    int failed = state_path(path, config->log_path);
    if (failed)
        return failed;
    stage = "creating the state file beside the log";
    uint64_t size = sizeof(struct state) + config->slots * sizeof(struct slot);
    long at = map_file(path, O_CREAT | O_EXCL, size, size);
    if (IS_ERROR(at))
        return (int)at;
    stage = "creating the log";
    long log = map_file(config->log_path, O_CREAT | O_EXCL, HEADER_SIZE, HEADER_SIZE);
    if (IS_ERROR(log))
        return (int)log;
    shared = (struct state *)at;
    shared->log_size_max = config->log_size_max;
    shared->slots = config->slots;
    shared->seed = config->seed;
    shared->clock = config->clock_start;
    shared->tick = config->clock_tick;
    shared->options = config->options;
    memcpy(shared->disabled, config->disabled, sizeof shared->disabled);
    strncpy(shared->log_path, config->log_path, STATE_PATH_MAX - 1);
    strncpy(shared->library, config->library, STATE_PATH_MAX - 1);
    memcpy(shared->magic, STATE_MAGIC, sizeof STATE_MAGIC);
    log_header = (struct header *)log;
    return 0;
}

static int write_header(const struct config *config)
{
    struct stat st;
    stage = "looking at the root";
    if (strlen(config->root) >= ROOT_PATH_MAX)
        return -ENAMETOOLONG;
    long failed = stat_at(AT_FDCWD, config->root, &st, 0);
    if (failed || !S_ISDIR(st.st_mode))
        return failed ? (int)failed : -ENOTDIR;
    memcpy(log_header->magic, OPLOG_MAGIC, sizeof OPLOG_MAGIC);
    log_header->version = OPLOG_VERSION;
    log_header->header_size = HEADER_SIZE;
    log_header->record_size = RECORD_SIZE;
    log_header->machine = MACHINE;
    log_header->options = config->options;
    log_header->path_size = (uint32_t)strlen(config->root);
    log_header->seed = config->seed;
    log_header->clock_start = config->clock_start;
    log_header->clock_tick = config->clock_tick;
    memcpy(log_header->disabled, config->disabled, sizeof log_header->disabled);
    memcpy(log_header->path, config->root, log_header->path_size);
    log_header->root.inode = st.st_ino;
    log_header->root.device = (uint32_t)st.st_dev;
    log_header->root.birth = 1; /* the first that the walk meets */
    log_header->check = log_crc(log_header, sizeof *log_header);
    log_header->committed = log_header->spooled = HEADER_SIZE;
    if (config->options & OPT_NO_CALLS)
        return 0;
    stage = "walking the root";
    struct object none = {0, 0, 0};
    log_lock();
    int wrong = object_adopt(AT_FDCWD, config->root, none, K_BASE, WALK_DEPTH, 0);
    log_unlock();
    return wrong ? wrong : -(int)log_header->lost;
}

EXPORT int recorder_start(const struct config *config)
{
    stage = "this process is recorded already";
    if (shared || prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        return -EALREADY;
    log_prepare_checks();
    stage = "installing the handler";
    int failed = handler_install();
    if (!failed)
        failed = create_files(config);
    if (!failed)
        failed = write_header(config);
    if (failed)
        return failed;
    stage = "patching the vDSO";
    failed = patch_vdso(config->options);
    if (failed)
        return failed;
    stage = "installing the filter";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -EPERM;
    __atomic_store_n(&shared->is_active, 1, __ATOMIC_SEQ_CST);
    failed = filter_install(config->options, 1);
    if (failed)
        shared->is_active = 0;
    return failed;
}

EXPORT void recorder_set_stacks(stack_hash_function hash, stack_text_function text)
{
    stack_hash = hash;
    stack_text = text;
}

static uint64_t block_signals(void)
{
    uint64_t all = ~0ull, old = 0;
    raw4(SYS_rt_sigprocmask, 0 /* BLOCK */, &all, &old, 8);
    return old;
}

static void restore_signals(uint64_t old)
{
    raw4(SYS_rt_sigprocmask, 2 /* SETMASK */, &old, 0, 8);
}

EXPORT int recorder_mark(uint32_t kind, uint64_t number, const char *text, uint32_t size)
{
    if (is_off(K_MARKER))
        return shared && shared->options & OPT_NO_CALLS ? 0 : -ENODATA;
    uint64_t old = block_signals();
    log_lock();
    struct record *record = log_begin(K_MARKER, NULL);
    if (record) {
        record->mode = kind;
        record->offset = number;
        char *room = size ? log_payload(&record, size) : NULL;
        if (room)
            memcpy(room, text, size);
        log_commit(record, 0);
    }
    log_unlock();
    restore_signals(old);
    return record ? 0 : -EFBIG;
}

/* Lets all calls through from now on, in every process, and completes the file. */
EXPORT int recorder_stop(void)
{
    if (!shared || !log_header)
        return -ENODATA;
    uint64_t old = block_signals();
    log_lock();
    shared->is_active = 0;
    log_spool();
    int result = -(int)log_header->lost;
    log_header->is_closed = 1;
    log_unlock();
    restore_signals(old);
    return result;
}

/* In a program that a recorded process started. */

__attribute__((constructor)) static void join_recording(int count, char **words, char **environment)
{
    (void)count, (void)words;
    const char *log_path = NULL;
    for (; environment && *environment; environment++)
        if (!strncmp(*environment, RECORDER, strlen(RECORDER)))
            log_path = *environment + strlen(RECORDER);
    if (!log_path || raw1(SYS_prctl, PR_GET_SECCOMP) != 2)
        return;
    char path[STATE_PATH_MAX];
    struct stat st;
    log_prepare_checks();
    if (handler_install() || state_path(path, log_path))
        return;
    long at = -ENOENT, log = -ENOENT;
    if (stat_at(AT_FDCWD, path, &st, 0) == 0 && (uint64_t)st.st_size >= sizeof(struct state))
        at = map_file(path, 0, 0, (uint64_t)st.st_size);
    if (!IS_ERROR(at))
        log = map_file(log_path, 0, 0, HEADER_SIZE);
    if (!IS_ERROR(log)) {
        shared = (struct state *)at;
        log_header = (struct header *)log;
        patch_vdso(shared->options);
    }
    filter_install(shared ? shared->options : 0, 0);
}
