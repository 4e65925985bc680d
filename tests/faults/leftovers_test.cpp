// That tests see what a job leaves behind, and nothing that is another's.
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;

constexpr const char* kFiles[] = {"sem", "vader_segment", "osc_rdma", "mpich_shar_tmp"};

class Leftovers : public FaultTest {
 protected:
  void TearDown() override {
    remove_all();
    FaultTest::TearDown();
  }
  /// Makes one object of each kind, which nobody uses; what is said of them.
  std::vector<std::string> leave() {
    segment_ = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    semaphores_ = ::semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
    for (const char* const name : kFiles) std::ofstream(file(name)) << "x";
    return {"System V segment " + std::to_string(segment_),
            "System V semaphores " + std::to_string(semaphores_),
            "semaphore " + file("sem"),
            "shared memory " + file("vader_segment"),
            "shared memory " + file("osc_rdma"),
            "shared memory " + file("mpich_shar_tmp")};
  }
  void remove_all() {
    for (const char* const name : kFiles) ::unlink(file(name).c_str());
    ::shmctl(segment_, IPC_RMID, nullptr);
    ::semctl(semaphores_, 0, IPC_RMID);
  }
  static std::string file(const std::string& name) {
    return "/dev/shm/" + name + "." + std::to_string(::getpid());
  }

  int segment_ = -1, semaphores_ = -1;
};

TEST_F(Leftovers, AreNamedUnlessTheyAreUsedOrAnothers) {
  LaunchedJob& job = launch({"-np", "1"}, {"none", "-", "-", "1"});
  ASSERT_EQ(job.wait(), 0) << transcript(job);
  auto texts = leave();
  const std::string temporary = job.folder() + "/tmp/";
  for (const char* const name : {"left", "ompi.session"}) std::ofstream(temporary + name) << "x";
  texts.push_back("temporary file " + temporary + "left");
  EXPECT_THAT(lines_of(job.leftovers()), IsSupersetOf(texts));
  // After all tests, when Open MPI's folders may be left.
  const std::string listed = "$(bash " LEFTOVERS_SCRIPT " /none " + temporary + " | grep temp)";
  EXPECT_EQ(std::system(("test \"" + listed + "\" = '" + texts.back() + "'").c_str()), 0);
  for (const char* const name : {"left", "ompi.session"}) ::unlink((temporary + name).c_str());

  void* const attached = ::shmat(segment_, nullptr, 0);
  const UniqueFd descriptor(::open(file("vader_segment").c_str(), O_RDONLY | O_CLOEXEC));
  void* const mapped = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  const auto left = lines_of(job.leftovers());
  EXPECT_THAT(left, Not(Contains(texts[0])));
  EXPECT_THAT(left, Contains(texts[2]));
  EXPECT_THAT(left, Not(Contains(texts[3])));
  ::munmap(mapped, 1);
  ::shmdt(attached);
  remove_all();
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  const std::string elsewhere = "nsenter --mount --target " + std::to_string(::getppid());
  const std::string another = " /dev/shm/vader_segment.another." + std::to_string(::getpid());
  ASSERT_EQ(std::system((elsewhere + " touch" + another).c_str()), 0);
  EXPECT_EQ(job.leftovers(), "");
  EXPECT_EQ(std::system((elsewhere + " rm" + another).c_str()), 0);
}

}  // namespace
}  // namespace hora::launch::test
