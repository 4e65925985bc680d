#include "examples/vision/data/cifar_python.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "examples/vision/data/archive.h"
#include "examples/vision/data/open_data.h"
#include "examples/vision/data/random.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::fixture;
using test::message_of;
using test::read_bytes;
using test::write_bytes;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> parts{"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                                     "data_batch_5", "test_batch",   "batches.meta"};

// As make_pickles.py says.
void expect_records(const Dataset& data, int first_file) {
  std::vector<std::uint8_t> memory;
  for (std::size_t image = 0; image < data.size(); ++image) {
    const int file = first_file + static_cast<int>(image / 2);
    const int record = static_cast<int>(image % 2);
    EXPECT_EQ(data.label(image), (file + record) % 10);
    const EncodedImage encoded = data.encoded(image, memory);
    ASSERT_EQ(encoded.size, (ImageSize{32, 32}));
    ASSERT_EQ(encoded.bytes.size(), 3072U);
    for (int i = 0; i < 3072; ++i) {
      ASSERT_EQ(encoded.bytes[static_cast<std::size_t>(i)],
                (50 * file + 20 * record + i / 64) % 256);
    }
  }
}

class CifarPython : public testing::Test {
 protected:
  fs::path archive() const { return folder_.path() / cifar10_python_archive; }
  const fs::path& folder() const { return folder_.path(); }
  // The archive's files, in this test's folder.
  void unpack() const {
    std::set<std::string> wanted;
    for (const std::string& part : parts) {
      wanted.insert("cifar-10-batches-py/" + part);
    }
    for (const auto& [name, bytes] :
         read_archive(fixture(cifar10_python_archive), wanted, 1 << 20)) {
      write_bytes(folder() / fs::path(name).filename(), bytes);
    }
  }
  // In the file, the first place of `from` becomes `to`.
  void change(const std::string& part, const Bytes& from, const Bytes& to) const {
    Bytes bytes = read_bytes(folder() / part);
    const auto place = std::search(bytes.begin(), bytes.end(), from.begin(), from.end());
    ASSERT_NE(place, bytes.end());
    std::copy(to.begin(), to.end(), place);
    write_bytes(folder() / part, bytes);
  }
  std::string error() const {
    return message_of([&] { open_data(folder()); });
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(CifarPython, ReadsTheArchive) {
  const DataSets data = open_data(fixture(cifar10_python_archive));
  EXPECT_EQ(data.id(), "cifar10-subset");
  EXPECT_EQ(data.training->title(), "a subset of CIFAR-10");
  EXPECT_EQ(data.training->classes().back(), "truck");
  ASSERT_EQ(data.training->size(), 10U);
  ASSERT_EQ(data.validation->size(), 2U);
  expect_records(*data.training, 1);
  expect_records(*data.validation, 6);
  EXPECT_EQ(data.training->where(3), fixture(cifar10_python_archive).string() +
                                         ", cifar-10-batches-py/data_batch_2, record 1");
}

TEST_F(CifarPython, ReadsTheUnpackedFiles) {
  unpack();
  const DataSets data = open_data(folder());
  ASSERT_EQ(data.training->size(), 10U);
  expect_records(*data.training, 1);
  expect_records(*data.validation, 6);
  EXPECT_EQ(data.training->where(2), (folder() / "data_batch_2").string() + ", record 0");
}

TEST_F(CifarPython, EveryTruncationOfTheArchiveIsNamed) {
  const Bytes whole = read_bytes(fixture(cifar10_python_archive));
  write_bytes(archive(), whole);
  EXPECT_EQ(error(), "");
  for (std::size_t left = 0; left < whole.size(); ++left) {
    write_bytes(archive(), std::span(whole).first(left));
    ASSERT_THAT(error(), StartsWith(archive().string())) << left << " bytes";
  }
}

TEST_F(CifarPython, NoChangedByteOfTheArchiveChangesTheData) {
  const Bytes whole = read_bytes(fixture(cifar10_python_archive));
  // Some bits mean nothing: time and system in gzip's header, codes that no symbol has.
  std::size_t taken = 0;
  Random random{hora::internal::test::seed()};
  for (std::size_t place = 0; place < whole.size(); place += 1 + random.below(10)) {
    SCOPED_TRACE(place);
    Bytes damaged = whole;
    damaged[place] ^= 0x10;
    write_bytes(archive(), damaged);
    try {
      const DataSets data = open_data(archive());
      ++taken;
      expect_records(*data.training, 1);
      expect_records(*data.validation, 6);
    } catch (const std::runtime_error& error) {
      ASSERT_THAT(error.what(), StartsWith(archive().string()));
    }
  }
  EXPECT_LT(taken, 12U);
}

TEST_F(CifarPython, NamesAMissingPart) {
  unpack();
  fs::remove(folder() / "data_batch_4");
  EXPECT_THAT(error(), StartsWith((folder() / "data_batch_4").string() + ": cannot be opened"));
  write_bytes(archive(), Bytes(1024, 0));  // an empty archive
  EXPECT_THAT(message_of([&] { open_data(archive()); }),
              AllOf(StartsWith(archive().string()), HasSubstr("batches.meta is missing")));
}

TEST_F(CifarPython, EveryTruncationOfAPickleIsNamed) {
  unpack();
  const Bytes whole = read_bytes(folder() / "test_batch");
  for (std::size_t left = 0; left < whole.size(); left += left < 300 ? 1 : 97) {
    write_bytes(folder() / "test_batch", std::span(whole).first(left));
    ASSERT_THAT(error(), StartsWith((folder() / "test_batch").string())) << left << " bytes";
  }
}

TEST_F(CifarPython, RefusesLabelsAndRowsThatDoNotFit) {
  unpack();
  const Bytes labels{'K', 2, 'K', 3, 'e'};
  change("data_batch_2", labels, {'K', 2, 'K', 10, 'e'});
  EXPECT_THAT(error(), AllOf(StartsWith((folder() / "data_batch_2").string()),
                             HasSubstr("record 1 has label 10"), HasSubstr("0 to 9")));
  unpack();
  change("data_batch_2", labels, {'K', 2, 'N', 'N', 'e'});
  EXPECT_THAT(error(), HasSubstr("'labels' something other than whole numbers"));
  unpack();
  change("data_batch_2", {'K', 2, 'M', 0, 12}, {'K', 3, 'M', 0, 8});  // 3 x 2048
  EXPECT_THAT(error(), AllOf(StartsWith((folder() / "data_batch_2").string()),
                             HasSubstr("3 x 2048 bytes and 2 labels"), HasSubstr("10000 x 3072")));
  unpack();
  change("batches.meta", {'f', 'r', 'o', 'g'}, {'t', 'o', 'a', 'd'});
  EXPECT_THAT(error(),
              AllOf(StartsWith((folder() / "batches.meta").string()), HasSubstr("not CIFAR-10's")));
}

TEST(ReadArchive, TakesTarUnpackedAndGzipInSeveralMembers) {
  const test::TemporaryFolder folder;
  const fs::path packed = fixture(cifar10_python_archive);
  const std::string part = "cifar-10-batches-py/batches.meta";
  const auto expected = read_archive(packed, {part}, 1 << 20);
  ASSERT_EQ(expected.size(), 1U);
  const auto run = [&](const std::string& command) {
    ASSERT_EQ(std::system(("cd '" + folder.path().string() + "' && " + command).c_str()), 0);
  };
  run("gzip -dc '" + packed.string() + "' > a.tar");
  EXPECT_EQ(read_archive(folder.path() / "a.tar", {part}, 1 << 20), expected);
  run("head -c 5000 a.tar | gzip > b.gz && tail -c +5001 a.tar | gzip >> b.gz");
  EXPECT_EQ(read_archive(folder.path() / "b.gz", {part}, 1 << 20), expected);
  run("echo behind >> b.gz");
  EXPECT_THAT(message_of([&] { read_archive(folder.path() / "b.gz", {part}, 1 << 20); }),
              AllOf(StartsWith((folder.path() / "b.gz").string()), HasSubstr("is corrupt")));
}

TEST(ReadArchive, LimitsSizes) {
  const std::string part = "cifar-10-batches-py/data_batch_1";
  EXPECT_THAT(
      message_of([&] { read_archive(fixture(cifar10_python_archive), {part}, 1000); }),
      AllOf(StartsWith(fixture(cifar10_python_archive).string()), HasSubstr("at most 1000")));
  // A folder is no file, and what the archive lacks is missing in the result.
  EXPECT_THAT(message_of([&] {
                read_archive(fixture(cifar10_python_archive), {"cifar-10-batches-py/"}, 9);
              }),
              HasSubstr("expected a regular file"));
  EXPECT_TRUE(read_archive(fixture(cifar10_python_archive), {"absent"}, 9).empty());
  EXPECT_THAT(message_of([&] { read_archive("/dev/null", {part}, 9); }),
              HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace vision
