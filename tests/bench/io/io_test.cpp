/// The program runs on a small folder, and names what it cannot read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace {

using nlohmann::json;
using testing::HasSubstr;

class Io : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "hora-io-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::filesystem::create_directories(folder_ / "images" / "a");
    for (const char* name : {"1.jpg", "2.jpg", "3.jpg"}) {
      std::filesystem::copy_file(PHOTOGRAPH, folder_ / "images" / "a" / name);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int run(const std::string& arguments) const {
    const std::string command = std::string("timeout --foreground --kill-after=10 120 ") + IO +
                                " " + (folder_ / "images").string() +
                                " --benchmark_min_time=0.001 " + arguments + " > " +
                                (folder_ / "screen").string() + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  std::string file(const std::string& name) const {
    std::ifstream in(folder_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::filesystem::path folder_;
};

TEST_F(Io, MeasuresEveryPart) {
  const auto path = (folder_ / "results.json").string();
  ASSERT_EQ(run("--workers 2 --batch 2 --benchmark_out=" + path), 0) << file("screen");
  std::set<std::string> names;
  const json results = json::parse(file("results.json"));
  for (const json& row : results.at("benchmarks")) {
    names.insert(row.at("name"));
    EXPECT_GT(row.at("images/s"), 0);
    EXPECT_GT(row.at("images/core_s"), 0);
    EXPECT_NEAR(row.at("MB/s").get<double>() / row.at("images/s").get<double>(),
                1e-6 * static_cast<double>(std::filesystem::file_size(PHOTOGRAPH)), 1e-6);
  }
  EXPECT_EQ(names, (std::set<std::string>{
                       "read/cache/real_time", "read/disk/real_time", "decode/real_time",
                       "training_transforms/real_time", "validation_transforms/real_time",
                       "loader/workers:1/real_time", "loader/workers:2/real_time",
                       "loader/disk/workers:2/real_time"}));
}

TEST_F(Io, NamesABadImage) {
  const auto bad = folder_ / "images" / "a" / "2.jpg";
  std::filesystem::resize_file(bad, 20'000);
  for (const std::string filter : {"decode", "loader/workers:1"}) {
    EXPECT_EQ(run("--benchmark_filter=" + filter), 1);
    EXPECT_THAT(file("screen"), HasSubstr(bad.string()));
  }
}

}  // namespace
