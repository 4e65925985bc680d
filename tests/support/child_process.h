/// Another process, for memory that two share.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace hora::internal::test {

/// Forks, runs `body` in the child, and gives its exit code: body's (0 to 100), 101 where it threw,
/// -1 where it died.
template <class Body>
class ChildProcess {
 public:
  explicit ChildProcess(Body body) : pid_(::fork()) {
    if (pid_ != 0) return;
    int code = 101;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(code);
  }
  ~ChildProcess() {
    if (pid_ > 0) wait();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int wait() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, 0);
    return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

}  // namespace hora::internal::test
