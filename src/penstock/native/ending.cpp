// The end of the program while other threads are in C++ code of a library, such as OpenCV.
//
// Once the interpreter ends, Python before 3.14 ends each other thread that asks for the GIL, by `pthread_exit`. That
// unwinds the thread's C++ frames. A destructor that takes the GIL may not be unwound, so the C++ runtime calls
// `std::terminate`, and a `catch (...)` that swallows the unwinding makes the C library call `abort`. Both would end
// the whole program with signal 6, whatever it had to say. Such a thread waits here instead, and ends with the process.
#include "python.hpp"

#include <csignal>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>

namespace penstock {
namespace {

pthread_t g_main;
std::terminate_handler g_terminate = nullptr;
struct sigaction g_abort;

void wait_unless_main() {
    while (!pthread_equal(pthread_self(), g_main)) {
        pause(); // ended by the end of the process
    }
}

[[noreturn]] void on_terminate() {
    wait_unless_main();
    if (g_terminate != nullptr) {
        g_terminate();
    }
    std::abort();
}

void on_abort(int) {
    wait_unless_main();
    sigaction(SIGABRT, &g_abort, nullptr);
    raise(SIGABRT);
}

} // namespace

// Called by the main thread, once, when the interpreter is about to end.
PyObject *outlast_interpreter(PyObject *, PyObject *) {
    if (g_terminate == nullptr) {
        g_main = pthread_self();
        g_terminate = std::set_terminate(on_terminate);
        struct sigaction action = {};
        action.sa_handler = on_abort;
        sigemptyset(&action.sa_mask);
        sigaction(SIGABRT, &action, &g_abort);
    }
    Py_RETURN_NONE;
}

} // namespace penstock
