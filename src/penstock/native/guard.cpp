// Survives pages that are gone: a mapped file that became shorter, a disk that fails, a full /dev/shm.
//
// The kernel sends SIGBUS to the thread that touched the page. The handler jumps back into `run_guarded` if that thread
// is inside of it, and otherwise passes the signal on to the handler that was there before. A handler that another
// library installs later comes first; `run_guarded` finds it, and puts this one in front again.
#include "core.hpp"

#include <csetjmp>
#include <csignal>
#include <unistd.h>

namespace penstock {
namespace {

struct Frame {
    sigjmp_buf jump;
    const void *address;
};

// initial-exec: the handler may not allocate, which the first use of an ordinary thread-local variable can do.
__attribute__((tls_model("initial-exec"))) thread_local Frame *volatile t_frame = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local volatile bool t_is_passing_on = false;

std::mutex g_mutex; // guards changes of g_previous; the handler reads without it
struct sigaction g_previous;

void restore_default() {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &action, nullptr);
}

void handle(int number, siginfo_t *info, void *context) {
    Frame *frame = t_frame;
    // A fault, or the repetition of one by a handler in front of this one (such as faulthandler's).
    bool is_fault = info->si_code > 0 || (info->si_code == SI_TKILL && info->si_pid == getpid());
    if (frame != nullptr && is_fault) {
        frame->address = info->si_code > 0 ? info->si_addr : nullptr;
        siglongjmp(frame->jump, 1);
    }
    if (!t_is_passing_on) { // handlers that call each other in a circle end in the default one
        struct sigaction previous = g_previous;
        t_is_passing_on = true;
        if (previous.sa_flags & SA_SIGINFO) {
            previous.sa_sigaction(number, info, context);
            t_is_passing_on = false;
            return;
        }
        if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
            previous.sa_handler(number);
            t_is_passing_on = false;
            return;
        }
        t_is_passing_on = false;
        if (previous.sa_handler == SIG_IGN && info->si_code <= 0) {
            return;
        }
    }
    restore_default();
    if (info->si_code <= 0) {
        raise(number); // somebody sent it; a fault repeats itself when this returns
    }
}

} // namespace

void watch_faults() {
    struct sigaction current;
    if (sigaction(SIGBUS, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) &&
        current.sa_sigaction == handle) {
        return;
    }
    std::lock_guard<std::mutex> lock(g_mutex);
    struct sigaction action = {};
    action.sa_sigaction = handle;
    // NODEFER: the jump leaves the handler without restoring the mask.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, nullptr, &current) != 0 ||
        ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handle)) {
        return;
    }
    g_previous = current;
    sigaction(SIGBUS, &action, nullptr);
}

bool run_guarded(void (*body)(void *), void *context, const void **address) {
    Frame frame;
    frame.address = nullptr;
    if (sigsetjmp(frame.jump, 0) != 0) {
        t_frame = nullptr;
        *address = frame.address;
        return false;
    }
    t_frame = &frame;
    body(context);
    t_frame = nullptr;
    return true;
}

} // namespace penstock
