// That tests see what a job leaves behind: leftovers() of each job here, and leftovers.sh, which
// looks once more after all tests.
#include <fcntl.h>
#include <semaphore.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

/// One object of each kind, of this process, that nobody uses.
class SharedObjects {
 public:
  SharedObjects() {
    ::sem_t* const semaphore = ::sem_open(("/" + name_).c_str(), O_CREAT | O_EXCL, 0600, 1);
    if (semaphore != SEM_FAILED) ::sem_close(semaphore);
    for (const std::string& file : files_) std::ofstream("/dev/shm/" + file) << "x";
  }
  SharedObjects(const SharedObjects&) = delete;
  SharedObjects& operator=(const SharedObjects&) = delete;
  ~SharedObjects() {
    ::sem_unlink(("/" + name_).c_str());
    for (const std::string& file : files_) ::unlink(("/dev/shm/" + file).c_str());
    ::shmctl(segment_, IPC_RMID, nullptr);
    ::semctl(semaphores_, 0, IPC_RMID);
  }

  std::vector<std::string> texts() const {
    std::vector<std::string> result{"semaphore /dev/shm/sem." + name_,
                                    "System V segment " + std::to_string(segment_),
                                    "System V semaphores " + std::to_string(semaphores_)};
    for (const std::string& file : files_) result.push_back("shared memory /dev/shm/" + file);
    return result;
  }
  int segment() const { return segment_; }
  std::string file() const { return "/dev/shm/" + files_[0]; }

 private:
  const std::string name_ = "leftovers_test." + std::to_string(::getpid());
  const std::array<std::string, 3> files_{"vader_segment." + name_, "osc_rdma." + name_,
                                          "mpich_shar_tmp" + std::to_string(::getpid())};
  const int segment_ = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  const int semaphores_ = ::semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
};

TEST(Leftovers, OfTheKernelAreSeenUnlessTheyAreUsed) {
  const SharedObjects objects;
  EXPECT_THAT(shared_objects(), IsSupersetOf(objects.texts()));
  for (const std::string& text : objects.texts()) EXPECT_FALSE(is_used(text)) << text;

  const std::string segment = "System V segment " + std::to_string(objects.segment());
  void* const attached = ::shmat(objects.segment(), nullptr, 0);
  EXPECT_TRUE(is_used(segment));
  ::shmdt(attached);
  EXPECT_FALSE(is_used(segment));

  const UniqueFd file(::open(objects.file().c_str(), O_RDONLY | O_CLOEXEC));
  void* const mapped = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, file.get(), 0);
  EXPECT_TRUE(is_used("shared memory " + objects.file()));
  ::munmap(mapped, 1);
}

class LeftoversOfAJob : public FaultTest {};

TEST_F(LeftoversOfAJob, AreNamedAndNotThoseOfAnother) {
  LaunchedJob& job = launch({"-np", "1"}, {"none", "-", "-", "1"});
  ASSERT_EQ(job.wait(), 0) << transcript(job);
  {
    const SharedObjects objects;
    const std::string file = job.folder() + "/tmp/left";
    std::ofstream(file) << "x";
    const std::string left = job.leftovers();
    EXPECT_THAT(left, HasSubstr("temporary file " + file));
    for (const std::string& text : objects.texts()) EXPECT_THAT(left, HasSubstr(text + "\n"));
    std::filesystem::remove(file);
  }
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  const std::string elsewhere = "nsenter --mount --target " + std::to_string(::getppid());
  const std::string file = " /dev/shm/vader_segment.another." + std::to_string(::getpid());
  ASSERT_EQ(std::system((elsewhere + " touch" + file).c_str()), 0);
  EXPECT_EQ(job.leftovers(), "");
  EXPECT_EQ(std::system((elsewhere + " rm" + file).c_str()), 0);
}

/// leftovers.sh's lines.
std::vector<std::string> found_by_script(const std::string& temporary) {
  const std::string build = std::filesystem::path(FAULT_RANK).parent_path();
  const std::string command =
      "bash " LEFTOVERS_SCRIPT " '" + build + "/no_programs' '" + temporary + "'";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             &::pclose);
  std::string text;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
    text += static_cast<char>(c);
  }
  return lines_of(text);
}

TEST(LeftoversOfAllTests, AreListed) {
  const internal::test::TemporaryFolder folder;
  const std::string left = folder.file("left");
  std::ofstream(left) << "x";
  std::ofstream(folder.file("ompi.session")) << "x";
  const SharedObjects objects;
  auto expected = objects.texts();
  expected.push_back("temporary file " + left);
  const auto found = found_by_script(folder.path());
  EXPECT_THAT(found, IsSupersetOf(expected));
  EXPECT_THAT(found, Not(Contains(HasSubstr("ompi.session"))));

  void* const attached = ::shmat(objects.segment(), nullptr, 0);
  EXPECT_THAT(found_by_script(folder.path()),
              Not(Contains("System V segment " + std::to_string(objects.segment()))));
  ::shmdt(attached);
}

}  // namespace
}  // namespace hora::launch::test
