#include "core/launch/command/mpi_installation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

MpiVersion version(const std::string& output) {
  const auto parsed = parse_mpi_version("mpirun", output);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error());
  return parsed.value_or(MpiVersion{});
}

TEST(MpiVersion, OfOpenMpi) {
  EXPECT_EQ(version("mpirun (Open MPI) 4.1.4\n\nReport bugs to "
                    "http://www.open-mpi.org/community/help/\n"),
            (MpiVersion{MpiFlavour::open_mpi_4, "4.1.4"}));
  EXPECT_EQ(version("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to "
                    "http://www.open-mpi.org/community/help/\n"),
            (MpiVersion{MpiFlavour::open_mpi_4, "4.1.4"}));
  EXPECT_EQ(version("mpirun (Open MPI) 5.0.11\n\nReport bugs to "
                    "https://www.open-mpi.org/community/help/\n"),
            (MpiVersion{MpiFlavour::open_mpi_5, "5.0.11"}));
  EXPECT_EQ(version("mpirun (Open MPI) 10.0.0rc1\n").flavour, MpiFlavour::open_mpi_5);
}

TEST(MpiVersion, OfMpich) {
  EXPECT_EQ(version("HYDRA build details:\n"
                    "    Version:                                 4.0.2\n"
                    "    Release Date:                            Thu Apr  7 12:34:45 CDT 2022\n"
                    "    CC:                              gcc -Wdate-time -g -O2\n"),
            (MpiVersion{MpiFlavour::hydra, "4.0.2"}));
}

TEST(MpiVersion, RefusesOthersByTheirFirstLine) {
  for (const char* const output :
       {"", "\n\n", "Intel(R) MPI Library for Linux* OS, Version 2021.9\nCopyright 2003",
        "mpirun (Open MPI) 1.10.2", "mpirun (Open MPI) x", "HYDRA build details:\n Version:\n",
        "\x1b[31mred"}) {
    const auto parsed = parse_mpi_version("/opt/mpirun", output);
    ASSERT_FALSE(parsed) << output;
    EXPECT_THAT(parsed.error(),
                AllOf(HasSubstr("\"/opt/mpirun\" --version says \""), HasSubstr("--mpirun")));
  }
  EXPECT_THAT(parse_mpi_version("m", "Intel(R) MPI\nmore").error(),
              HasSubstr("says \"Intel(R) MPI\";"));
}

class FindMpi : public testing::Test {
 protected:
  std::string program(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name)) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(folder_.file(name), std::filesystem::perms::owner_all);
    return folder_.file(name);
  }
  TemporaryFolder folder_;
};

TEST_F(FindMpi, TakesTheExplicitOneThenTheBuildsThenThatOnPath) {
  const std::string path = program("mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
  const std::string orted = program("orted", "");
  const std::string built = program("built", "echo 'mpirun (Open MPI) 5.0.1'");
  const std::string explicit_path =
      program("other", "echo 'HYDRA build details:'; echo Version: 4.1");
  const std::string folders = "relative:/nonexistent::" + folder_.path().string();
  const auto first = find_mpi({explicit_path, built, folders});
  ASSERT_TRUE(first) << first.error();
  EXPECT_EQ(first->mpirun, explicit_path);
  EXPECT_EQ(first->flavour, MpiFlavour::hydra);
  EXPECT_EQ(first->daemon, "");
  const auto second = find_mpi({"", built, folders});
  ASSERT_TRUE(second) << second.error();
  EXPECT_EQ(second->mpirun, built);
  EXPECT_EQ(second->version, "5.0.1");
  EXPECT_EQ(second->daemon, "");
  const auto third = find_mpi({"", "/nonexistent/mpirun", folders});
  ASSERT_TRUE(third) << third.error();
  EXPECT_EQ(third->mpirun, path);
  EXPECT_EQ(third->daemon, orted);
  EXPECT_EQ(find_mpi({"other", built, folders})->mpirun, explicit_path);
}

TEST_F(FindMpi, SaysWhatToInstallWhereThereIsNone) {
  const auto none = find_mpi({"", "/built/mpirun", "/nonexistent"});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error(), AllOf(HasSubstr("/built/mpirun"), HasSubstr("apt install openmpi-bin"),
                                  HasSubstr("--mpirun")));
  const auto named = find_mpi({"/no/such", "/built/mpirun", "/nonexistent"});
  ASSERT_FALSE(named);
  EXPECT_THAT(named.error(), HasSubstr("--mpirun \"/no/such\": there is no such program"));
}

TEST_F(FindMpi, SaysWhatAnotherProgramPrinted) {
  const auto found = find_mpi({program("mpirun", "echo broken >&2; exit 1"), "", ""});
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error(), HasSubstr("says \"broken\""));
}

}  // namespace
}  // namespace hora::launch
