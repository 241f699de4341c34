/*
 * The seccomp filter: which system calls end in the handler.
 *
 * Method: two filters. The first names the mutating calls, wherever in the process they come from,
 * and lets them through from the stub alone. It outlives exec, so it must not name a call that the
 * dynamic linker makes before our library is loaded. Those (close, open for reading, the calls on
 * signals) stand in the second, which takes only what comes from the text of this process's own
 * libc: after an exec libc lies elsewhere, and the new program's copy of the recorder adds a filter
 * for it. Numbers that are in no rule are let through before the address is looked at, so that the
 * kernel keeps them in its table of calls that cost nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "recorder.h"

#define PROGRAM_MAX 1024
#define TMPFILE 020000000
#define OPENS (O_ACCMODE | O_CREAT | O_TRUNC | TMPFILE)
#define X32 0x40000000u
#define RANGES_MAX 8

enum check { ALWAYS, ANY_BIT, NOT_NULL, ONE_OF, SHARED_MAP, RANDOM, MASKING, NO_CALL };

struct rule {
    long nr;
    enum check check;
    int argument;
    uint32_t value[3];
};

static const struct rule mutating[] = {
    {SYS_pwrite64, ALWAYS, 0, {0}}, {SYS_write, ALWAYS, 0, {0}}, {SYS_fsync, ALWAYS, 0, {0}},
    {SYS_fdatasync, ALWAYS, 0, {0}}, {SYS_ftruncate, ALWAYS, 0, {0}},
    {SYS_openat, ANY_BIT, 2, {OPENS}}, {SYS_openat2, ALWAYS, 0, {0}},
    {SYS_writev, ALWAYS, 0, {0}}, {SYS_pwritev, ALWAYS, 0, {0}}, {SYS_pwritev2, ALWAYS, 0, {0}},
    {SYS_truncate, ALWAYS, 0, {0}}, {SYS_fallocate, ALWAYS, 0, {0}},
    {SYS_copy_file_range, ALWAYS, 0, {0}}, {SYS_sendfile, ALWAYS, 0, {0}},
    {SYS_splice, ALWAYS, 0, {0}}, {SYS_ioctl, ONE_OF, 1, {0x40049409, 0x4020940d, 0xc0189436}},
    {SYS_renameat2, ALWAYS, 0, {0}}, {SYS_linkat, ALWAYS, 0, {0}}, {SYS_symlinkat, ALWAYS, 0, {0}},
    {SYS_unlinkat, ALWAYS, 0, {0}}, {SYS_mkdirat, ALWAYS, 0, {0}}, {SYS_mknodat, ALWAYS, 0, {0}},
    {SYS_fchmod, ALWAYS, 0, {0}}, {SYS_fchmodat, ALWAYS, 0, {0}}, {SYS_fchmodat2, ALWAYS, 0, {0}},
    {SYS_fchown, ALWAYS, 0, {0}}, {SYS_fchownat, ALWAYS, 0, {0}}, {SYS_utimensat, ALWAYS, 0, {0}},
    {SYS_setxattr, ALWAYS, 0, {0}}, {SYS_lsetxattr, ALWAYS, 0, {0}},
    {SYS_fsetxattr, ALWAYS, 0, {0}}, {SYS_setxattrat, ALWAYS, 0, {0}},
    {SYS_removexattr, ALWAYS, 0, {0}}, {SYS_lremovexattr, ALWAYS, 0, {0}},
    {SYS_fremovexattr, ALWAYS, 0, {0}}, {SYS_removexattrat, ALWAYS, 0, {0}},
    {SYS_sync, ALWAYS, 0, {0}}, {SYS_syncfs, ALWAYS, 0, {0}},
    {SYS_sync_file_range, ALWAYS, 0, {0}}, {SYS_msync, ALWAYS, 0, {0}},
    {SYS_mmap, SHARED_MAP, 0, {0}},
    {SYS_bind, ALWAYS, 0, {0}}, {SYS_io_setup, NO_CALL, 0, {0}},
    {425 /* io_uring_setup */, NO_CALL, 0, {0}},
#ifdef SYS_renameat
    {SYS_renameat, ALWAYS, 0, {0}},
#endif
#ifdef SYS_open
    {SYS_open, ANY_BIT, 1, {OPENS}}, {SYS_creat, ALWAYS, 0, {0}}, {SYS_rename, ALWAYS, 0, {0}},
    {SYS_link, ALWAYS, 0, {0}}, {SYS_unlink, ALWAYS, 0, {0}}, {SYS_rmdir, ALWAYS, 0, {0}},
    {SYS_mkdir, ALWAYS, 0, {0}}, {SYS_symlink, ALWAYS, 0, {0}}, {SYS_mknod, ALWAYS, 0, {0}},
    {SYS_chmod, ALWAYS, 0, {0}}, {SYS_chown, ALWAYS, 0, {0}}, {SYS_lchown, ALWAYS, 0, {0}},
    {SYS_utime, ALWAYS, 0, {0}}, {SYS_utimes, ALWAYS, 0, {0}}, {SYS_futimesat, ALWAYS, 0, {0}},
#endif
};

static const struct rule start_rules[] = {
    {SYS_execve, ALWAYS, 0, {0}}, {SYS_execveat, ALWAYS, 0, {0}},
};

static const struct rule random_rules[] = {{SYS_getrandom, RANDOM, 0, {0}}};

static const struct rule clock_rules[] = {
    {SYS_clock_gettime, ONE_OF, 0, {0 /* REALTIME */, 5 /* its coarse twin */, 11 /* TAI */}},
    {SYS_gettimeofday, ALWAYS, 0, {0}},
#ifdef SYS_time
    {SYS_time, ALWAYS, 0, {0}},
#endif
};

static const struct rule signal_rules[] = {
    {SYS_rt_sigprocmask, MASKING, 0, {0}}, {SYS_rt_sigaction, NOT_NULL, 1, {0}},
};

static const struct rule libc_rules[] = {
    {SYS_close, ALWAYS, 0, {0}}, {SYS_close_range, ALWAYS, 0, {0}}, {SYS_dup, ALWAYS, 0, {0}},
    {SYS_dup3, ALWAYS, 0, {0}}, {SYS_fcntl, ONE_OF, 1, {F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD}},
    {SYS_exit_group, ALWAYS, 0, {0}}, {SYS_mprotect, ANY_BIT, 2, {PROT_WRITE}},
#ifdef SYS_dup2
    {SYS_dup2, ALWAYS, 0, {0}},
#endif
};

static const struct rule libc_random_rules[] = {
    {SYS_getrandom, ALWAYS, 0, {0}}, {SYS_openat, ALWAYS, 0, {0}},
#ifdef SYS_open
    {SYS_open, ALWAYS, 0, {0}},
#endif
};

struct program {
    struct sock_filter code[PROGRAM_MAX];
    uint16_t size;
};

static void emit(struct program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no)
{
    if (p->size < PROGRAM_MAX)
        p->code[p->size++] = (struct sock_filter){code, yes, no, k};
}

#define LOAD(offset) emit(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offset), 0, 0)
#define RETURN(action) emit(p, BPF_RET | BPF_K, (action), 0, 0)
#define IF_EQUAL(k, yes, no) emit(p, BPF_JMP | BPF_JEQ | BPF_K, (k), (yes), (no))
#define IF_BITS(k, yes, no) emit(p, BPF_JMP | BPF_JSET | BPF_K, (k), (yes), (no))
#define IF_AT_LEAST(k, yes, no) emit(p, BPF_JMP | BPF_JGE | BPF_K, (k), (yes), (no))
#define LOW(n) (offsetof(struct seccomp_data, args) + 8 * (size_t)(n))
#define HIGH(n) (LOW(n) + 4)
#define ALLOW SECCOMP_RET_ALLOW

/* Falls through where the call is to be trapped. */
static void emit_check(struct program *p, const struct rule *rule)
{
    switch (rule->check) {
    case ALWAYS:
        break;
    case ANY_BIT:
        LOAD(LOW(rule->argument));
        IF_BITS(rule->value[0], 1, 0);
        RETURN(ALLOW);
        break;
    case NOT_NULL:
        LOAD(LOW(rule->argument));
        IF_EQUAL(0, 0, 3);
        LOAD(HIGH(rule->argument));
        IF_EQUAL(0, 0, 1);
        RETURN(ALLOW);
        break;
    case ONE_OF:
        LOAD(LOW(rule->argument));
        IF_EQUAL(rule->value[0], 3, 0);
        IF_EQUAL(rule->value[1], 2, 0);
        IF_EQUAL(rule->value[2], 1, 0);
        RETURN(ALLOW);
        break;
    case SHARED_MAP:
        LOAD(LOW(3));
        IF_BITS(MAP_SHARED, 1, 0);
        RETURN(ALLOW);
        IF_BITS(MAP_ANONYMOUS, 0, 1);
        RETURN(ALLOW);
        break;
    case RANDOM: /* libc's own draw for its memory, which comes before the library is loaded */
        LOAD(LOW(1));
        IF_EQUAL(8, 0, 3);
        LOAD(LOW(2));
        IF_EQUAL(1, 0, 1);
        RETURN(ALLOW);
        break;
    case MASKING:
        LOAD(LOW(0));
        IF_EQUAL(1 /* SIG_UNBLOCK */, 0, 1);
        RETURN(ALLOW);
        LOAD(LOW(1));
        IF_EQUAL(0, 0, 3);
        LOAD(HIGH(1));
        IF_EQUAL(0, 0, 1);
        RETURN(ALLOW);
        break;
    case NO_CALL:
        RETURN(SECCOMP_RET_ERRNO | ENOSYS);
        break;
    }
}

struct range {
    uint64_t start, end;
};

static void emit_action(struct program *p, const struct range *ranges, int count)
{
    size_t low = offsetof(struct seccomp_data, instruction_pointer), high = low + 4;
    if (!count) { /* from everywhere but the stub */
        LOAD(low);
        IF_EQUAL((uint32_t)STUB_NEXT, 0, 3);
        LOAD(high);
        IF_EQUAL((uint32_t)(STUB_NEXT >> 32), 0, 1);
        RETURN(ALLOW);
        RETURN(SECCOMP_RET_TRAP);
        return;
    }
    for (int i = 0; i < count; i++) {
        LOAD(high);
        IF_EQUAL((uint32_t)(ranges[i].start >> 32), 0, 4);
        LOAD(low);
        IF_AT_LEAST((uint32_t)ranges[i].start, 0, 2);
        IF_AT_LEAST((uint32_t)ranges[i].end, 1, 0);
        RETURN(SECCOMP_RET_TRAP);
    }
    RETURN(ALLOW);
}

static void emit_rules(struct program *p, const struct rule *rules, size_t count,
                       const struct range *ranges, int range_count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t test = p->size;
        IF_EQUAL((uint32_t)rules[i].nr, 0, 0);
        emit_check(p, &rules[i]);
        if (rules[i].check != NO_CALL)
            emit_action(p, ranges, range_count);
        p->code[test].jf = (uint8_t)(p->size - test - 1);
    }
}

#define RULES(list) (list), sizeof(list) / sizeof *(list)

static int install(struct program *p)
{
    RETURN(ALLOW);
    if (p->size >= PROGRAM_MAX)
        return -E2BIG;
    struct sock_fprog given = {p->size, p->code};
    /* For all threads; and no slower memory accesses for the sake of a sandbox, which it is not. */
    long result = raw3(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                       SECCOMP_FILTER_FLAG_TSYNC | 4 /* SPEC_ALLOW */, &given);
    return result > 0 ? -EBUSY : (int)result;
}

static void begin(struct program *p)
{
    p->size = 0;
    LOAD(offsetof(struct seccomp_data, arch));
    IF_EQUAL(AUDIT_MACHINE, 1, 0);
    RETURN(SECCOMP_RET_TRAP); /* a program of another machine dies, loudly */
    LOAD(offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    IF_AT_LEAST(X32, 0, 1);
    RETURN(SECCOMP_RET_ERRNO | ENOSYS);
#endif
}

struct search {
    struct range ranges[RANGES_MAX];
    int count;
};

/* A filter compares words of 32 bits: a range that crosses such a border is two. */
static void add_range(struct search *search, uint64_t start, uint64_t end)
{
    uint64_t border = (end - 1) & ~0xffffffffull;
    if (start < border) {
        add_range(search, border, end);
        end = border;
    }
    if (search->count < RANGES_MAX)
        search->ranges[search->count++] = (struct range){start, end};
}

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : "";
    if (strncmp(name, "libc.so", 7) && strncmp(name, "libc-2", 6) && strncmp(name, "libpthread", 10))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && part->p_flags & PF_X)
            add_range(data, start, start + part->p_memsz);
    }
    return 0;
}

/* A range that ends at a border of 4 GiB has 0 as its low end: one less loses no instruction. */
static void round_ends(struct search *search)
{
    for (int i = 0; i < search->count; i++)
        if ((uint32_t)search->ranges[i].end == 0)
            search->ranges[i].end--;
}

static struct program program;

int filter_install(uint32_t options, int is_first)
{
    struct program *p = &program;
    struct search search = {.count = 0};
    if (is_first) {
        begin(p);
        if (!(options & OPT_NO_CALLS))
            emit_rules(p, RULES(mutating), NULL, 0);
        emit_rules(p, RULES(start_rules), NULL, 0);
        if (options & OPT_RANDOM)
            emit_rules(p, RULES(random_rules), NULL, 0);
        if (options & OPT_CLOCK)
            emit_rules(p, RULES(clock_rules), NULL, 0);
        int failed = install(p);
        if (failed)
            return failed;
    }
    dl_iterate_phdr(look_at, &search);
    round_ends(&search);
    if (!search.count)
        return -ENOEXEC; /* no glibc that we know */
    begin(p);
    emit_rules(p, RULES(signal_rules), search.ranges, search.count);
    if (!(options & OPT_NO_CALLS))
        emit_rules(p, RULES(libc_rules), search.ranges, search.count);
    if (options & OPT_RANDOM)
        emit_rules(p, RULES(libc_random_rules), search.ranges, search.count);
    return install(p);
}
