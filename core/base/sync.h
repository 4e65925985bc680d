/// Locks that Clang's thread-safety analysis understands, and their order; a queue.
#pragma once

#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

/// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. The test `thread_safety` compiles the
/// sources with it; to other compilers these say nothing.
#if defined(__clang__)
#define HORA_ANNOTATION(x) __attribute__((x))
#else
#define HORA_ANNOTATION(x)
#endif

/// A class whose objects are locks, by this name in messages.
#define HORA_CAPABILITY(name) HORA_ANNOTATION(capability(name))
/// A class whose objects hold a lock as long as they live.
#define HORA_SCOPED_CAPABILITY HORA_ANNOTATION(scoped_lockable)
/// Marks a member that is read and written with the lock held.
#define HORA_GUARDED_BY(lock) HORA_ANNOTATION(guarded_by(lock))
/// Marks a function that is called with these locks held; that takes, shares, releases them.
#define HORA_REQUIRES(...) HORA_ANNOTATION(requires_capability(__VA_ARGS__))
#define HORA_REQUIRES_SHARED(...) HORA_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define HORA_ACQUIRE(...) HORA_ANNOTATION(acquire_capability(__VA_ARGS__))
#define HORA_ACQUIRE_SHARED(...) HORA_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define HORA_TRY_ACQUIRE(...) HORA_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define HORA_RELEASE(...) HORA_ANNOTATION(release_capability(__VA_ARGS__))
#define HORA_RELEASE_SHARED(...) HORA_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define HORA_RELEASE_GENERIC(...) HORA_ANNOTATION(release_generic_capability(__VA_ARGS__))
/// Marks a function after which the lock is known to be held.
#define HORA_ASSERT_HELD(...) HORA_ANNOTATION(assert_capability(__VA_ARGS__))
/// Marks a function that returns this lock.
#define HORA_RETURNS_LOCK(lock) HORA_ANNOTATION(lock_returned(lock))
/// Marks a function that the analysis cannot follow; a comment says why it is right.
#define HORA_NOT_ANALYSED HORA_ANNOTATION(no_thread_safety_analysis)

namespace hora::internal {

// The order of locks: a thread that holds one takes only later ones. Of two on one line, no
// thread holds both.
//
//   1. Round::mutex_                  a step or a hook of the optimizer
//   2. ProcessSets::call_lock_        one change of the process sets at a time, to its end
//   3. Progress::lock_                a round of the engine
//   4. ProcessSets::sets_lock_        the list of process sets
//   5. Operations::table_lock_        names and operations of one set
//   6. TensorArena::mutex_            a rank's tensors in shared memory
//   7. leaves, under which nothing is taken: Engine::mutex_,
//      SharedMemory::mutex_ and peers_mutex_, EventPool's, StreamHeap's, NcclBuffers::mutex_
//
// Beside these: Trace::control_mutex_, under which start and stop take Trace::mutex_;
// Trace::sources_mutex_ -> DeviceTrace::mutex_ -> EventPool's, Trace::mutex_. Trace::mutex_ is a
// leaf that may be taken under any lock.
//
// 1 and 2 are held while peers are waited for, so only calls that wait for peers take them; 3 also,
// but is released for any thread that asks. The others are held for a moment.

class HORA_CAPABILITY("mutex") Mutex {
 public:
  void lock() HORA_ACQUIRE() { mutex_.lock(); }
  bool try_lock() HORA_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() HORA_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Tells the CPU that this thread spins.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Held for some instructions at a time: who meets it held polls for a few microseconds, in which
/// it is released, before it sleeps. To sleep and to be woken take a call of the system each.
class HORA_CAPABILITY("mutex") BriefMutex {
 public:
  void lock() HORA_ACQUIRE() {
    constexpr int kMostPauses = 64;
    for (int pauses = 1; pauses <= kMostPauses; pauses *= 2) {
      if (mutex_.try_lock()) return;
      for (int i = 0; i < pauses; ++i) spin_pause();
    }
    mutex_.lock();
  }
  void unlock() HORA_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Many readers or one writer.
class HORA_CAPABILITY("shared mutex") SharedMutex {
 public:
  void lock() HORA_ACQUIRE() { mutex_.lock(); }
  void unlock() HORA_RELEASE() { mutex_.unlock(); }
  void lock_shared() HORA_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() HORA_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// To take a lock that has lock_between_rounds() by that (engine/progress.h).
struct BetweenRounds {};

/// Holds a lock as long as it lives.
template <class Lock>
class HORA_SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(Lock& lock) HORA_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  LockGuard(Lock& lock, BetweenRounds) HORA_ACQUIRE(lock) : lock_(lock) {
    lock_.lock_between_rounds();
  }
  /// Adopts a lock that is held already.
  LockGuard(Lock& lock, std::adopt_lock_t) HORA_REQUIRES(lock) : lock_(lock) {}
  ~LockGuard() HORA_RELEASE() { lock_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
};

/// Reads beside other readers as long as it lives.
class HORA_SCOPED_CAPABILITY SharedGuard {
 public:
  explicit SharedGuard(SharedMutex& lock) HORA_ACQUIRE_SHARED(lock) : lock_(lock) {
    lock_.lock_shared();
  }
  ~SharedGuard() HORA_RELEASE_GENERIC() { lock_.unlock_shared(); }
  SharedGuard(const SharedGuard&) = delete;
  SharedGuard& operator=(const SharedGuard&) = delete;

 private:
  SharedMutex& lock_;
};

/// First in, first out. A popped element keeps what memory it owns, and push() gives it out again
/// as it was left. References hold until the next push(). Thread rule: one thread.
template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[place(i)]; }
  const T& operator[](std::size_t i) const { return slots_[place(i)]; }
  T& front() { return slots_[begin_]; }
  const T& front() const { return slots_[begin_]; }

  /// A new last element, as an earlier one was left.
  T& push() {
    if (size_ == slots_.size()) grow();
    return slots_[place(size_++)];
  }
  void pop() {
    begin_ = place(1);
    --size_;
  }

 private:
  std::size_t place(std::size_t i) const {
    const std::size_t at = begin_ + i;
    return at < slots_.size() ? at : at - slots_.size();
  }
  void grow() {
    constexpr std::size_t kFirst = 8;
    std::vector<T> larger(slots_.empty() ? kFirst : 2 * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) larger[i] = std::move(slots_[place(i)]);
    slots_ = std::move(larger);
    begin_ = 0;
  }

  std::vector<T> slots_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

}  // namespace hora::internal
