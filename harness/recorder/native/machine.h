/*
 * The two machines: raw system calls, the one stub that the filter lets through, registers.
 *
 * raw_* make a system call in place: for calls that the filter does not trap. stub_* make it from
 * the page at STUB_AT, the only place from which the filter lets a trapped call pass. The address
 * is fixed since a filter cannot be changed any more and outlives exec.
 */
#ifndef RECORDER_MACHINE_H
#define RECORDER_MACHINE_H

#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>

typedef long (*stub_function)(void);

#if defined(__x86_64__)

#define STUB_AT 0x3c0d00000000ull /* above the shadows of sanitizers, below every mapping */
#define STUB_NEXT (STUB_AT + 2)   /* what the filter sees: the address behind the call */
#define MACHINE 62u
#define AUDIT_MACHINE 0xc000003eu
#define STUB_CODE {0x0f, 0x05, 0xc3} /* syscall; ret */

static inline long stub6(long n, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("call *%[stub]"
                     : "=a"(result)
                     : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9),
                       [stub] "b"(STUB_AT)
                     : "rcx", "r11", "memory", "cc");
    return result;
}

static inline long raw6(long n, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory", "cc");
    return result;
}

static inline void read_arguments(const ucontext_t *uc, long *nr, long a[6])
{
    const greg_t *r = uc->uc_mcontext.gregs;
    *nr = (long)r[REG_RAX];
    a[0] = r[REG_RDI], a[1] = r[REG_RSI], a[2] = r[REG_RDX];
    a[3] = r[REG_R10], a[4] = r[REG_R8], a[5] = r[REG_R9];
}

static inline void set_result(ucontext_t *uc, long result)
{
    uc->uc_mcontext.gregs[REG_RAX] = result;
}

#elif defined(__aarch64__)

#define STUB_AT 0x2c0d000000ull /* also within an address space of 39 bits */
#define STUB_NEXT (STUB_AT + 8)
#define MACHINE 183u
#define AUDIT_MACHINE 0xc00000b7u
/* bti c; svc #0; ret */
#define STUB_CODE {0x5f, 0x24, 0x03, 0xd5, 0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6}

static inline long stub6(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    register unsigned long x16 __asm__("x16") = STUB_AT;
    __asm__ volatile("blr x16"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x16)
                     : "x30", "memory", "cc");
    return x0;
}

static inline long raw6(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
}

static inline void read_arguments(const ucontext_t *uc, long *nr, long a[6])
{
    *nr = (long)uc->uc_mcontext.regs[8];
    for (int i = 0; i < 6; i++)
        a[i] = (long)uc->uc_mcontext.regs[i];
}

static inline void set_result(ucontext_t *uc, long result)
{
    uc->uc_mcontext.regs[0] = (unsigned long)result;
}

#else
#error "the recorder knows x86-64 and arm64"
#endif

#define raw0(n) raw6(n, 0, 0, 0, 0, 0, 0)
#define raw1(n, a) raw6(n, (long)(a), 0, 0, 0, 0, 0)
#define raw2(n, a, b) raw6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define raw3(n, a, b, c) raw6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define raw4(n, a, b, c, d) raw6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define stub1(n, a) stub6(n, (long)(a), 0, 0, 0, 0, 0)
#define stub2(n, a, b) stub6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define stub3(n, a, b, c) stub6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define stub4(n, a, b, c, d) stub6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

/* Numbers that older headers lack; the same on both machines. */
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif
#ifndef SYS_removexattrat
#define SYS_removexattrat 466
#endif

#endif
