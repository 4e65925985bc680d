#include "examples/vision/data/cifar.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "examples/vision/data/open_data.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

class Cifar : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder() / name).parent_path());
    std::ofstream(folder() / name, std::ios::binary) << text;
  }
  // Files of `records` records each, in which every byte is `value`.
  void write_set(const RecordSet& set, std::size_t records, char value,
                 const std::string& within = ".") const {
    for (const auto* part : {&set.training, &set.validation}) {
      for (const RecordFile& file : *part) {
        write(within + "/" + file.name, std::string(records * set.layout.bytes(), value));
      }
    }
  }
  std::string error() const {
    return message_of([&] { open_data(folder()); });
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(Cifar, TakesFilesWithoutNamesForCifar10AndNamesASubset) {
  write_set(cifar10_records(), 2, 7);
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.kind, DataKind::cifar10);
  EXPECT_EQ(data.id(), "cifar10-subset");
  EXPECT_EQ(data.training->title(), "a subset of CIFAR-10");
  EXPECT_EQ(data.training->size(), 10U);
  EXPECT_EQ(data.validation->size(), 2U);
  EXPECT_EQ(data.training->classes().at(7), "horse");
  EXPECT_EQ(data.training->label(9), 7);
  EXPECT_EQ(data.training->where(9), (folder() / "data_batch_5.bin").string() + ", record 1");
}

TEST_F(Cifar, TheWholeSetIsNoSubset) {
  RecordSet set = digits_records();
  write_set(set, 360, 0);
  fs::resize_file(folder() / "data_batch_1.bin", 1437 * set.layout.bytes());
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "digits");
  EXPECT_THAT(data.training->title(), testing::StartsWith("handwritten digits"));
  keep_first(data, 400);
  EXPECT_EQ(data.training->size(), 400U);
  EXPECT_EQ(data.validation->size(), 360U);
  EXPECT_EQ(data.training->where(3), (folder() / "data_batch_1.bin").string() + ", record 3");
  keep_first(data, 0);
  EXPECT_EQ(data.training->size(), 400U);
}

TEST_F(Cifar, KnowsCifar10ByItsNames) {
  // CIFAR-10's own file ends with an empty line.
  write(class_names_file,
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\r\nhorse\nship\ntruck\n\n");
  write_set(cifar10_records(), 1, 0);
  EXPECT_EQ(open_data(folder()).kind, DataKind::cifar10);
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
  EXPECT_THAT(error(),
              AllOf(HasSubstr((folder() / class_names_file).string()), HasSubstr("9 class names")));
}

TEST_F(Cifar, ReadsNamesFromASmallRegularFileAlone) {
  write_set(cifar10_records(), 1, 0);
  const fs::path names = folder() / class_names_file;
  ASSERT_EQ(mkfifo(names.c_str(), 0600), 0);
  EXPECT_THAT(error(), AllOf(HasSubstr(names.string()), HasSubstr("not a regular file")));
  fs::remove(names);
  fs::create_symlink("/dev/zero", names);
  EXPECT_THAT(error(), AllOf(HasSubstr(names.string()), HasSubstr("not a regular file")));
  fs::remove(names);
  write(class_names_file, std::string(class_names_bytes + 1, '\n'));
  EXPECT_THAT(error(), AllOf(HasSubstr(names.string()), HasSubstr("found 4097 bytes"),
                             HasSubstr("at most 4096")));
  write(class_names_file, std::string(class_names_bytes, '\n'));
  EXPECT_THAT(error(), HasSubstr("0 class names"));
}

TEST_F(Cifar, Cifar100HasTwoLabelsAndItsNamesInAFile) {
  write_set(cifar100_records(), 3, 0);
  for (const char* file : {"train.bin", "test.bin"}) {
    std::fstream out(folder() / file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(0).put(19).put(99).put(5);  // superclass, class, the first pixel's red
  }
  std::string names;
  for (int i = 0; i < 100; ++i) {
    names += "class " + std::to_string(i) + "\n";
  }
  EXPECT_THAT(error(), HasSubstr(cifar100_class_names_file));
  write(cifar100_class_names_file, names);
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "cifar100-subset");
  EXPECT_EQ(data.training->size(), 3U);
  EXPECT_EQ(data.training->label(0), 99);
  EXPECT_EQ(data.training->classes().at(99), "class 99");
  std::vector<std::uint8_t> memory;
  EXPECT_EQ(data.training->encoded(0, memory).bytes[0], 5);
  write(cifar100_class_names_file, names + "one more\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("101 class names"), HasSubstr("expected 100")));
}

TEST_F(Cifar, NamesWhatIsMissing) {
  EXPECT_THAT(error(), AllOf(HasSubstr(folder().string()), HasSubstr("holds no data set"),
                             HasSubstr("data_batch_1.bin"), HasSubstr("train_X.bin")));
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  EXPECT_THAT(error(), AllOf(HasSubstr((folder() / "data_batch_1.bin").string()),
                             HasSubstr("is missing: found 0 bytes")));
  EXPECT_THAT(message_of([&] { open_data(folder() / "absent"); }),
              AllOf(HasSubstr((folder() / "absent").string()), HasSubstr("does not exist")));
}

TEST_F(Cifar, IsFoundInTheFolderOfItsArchive) {
  write_set(cifar10_records(), 1, 1, "cifar-10-batches-bin");
  EXPECT_EQ(open_data(folder()).training->label(0), 1);
  // What lies in the folder itself comes first.
  write_set(cifar10_records(), 1, 2);
  EXPECT_EQ(open_data(folder()).training->label(0), 2);
}

TEST_F(Cifar, PythonsVersionIsRefusedWithItsConverter) {
  for (const std::string name :
       {"data_batch_1", "cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"}) {
    write(name, "pickle");
    EXPECT_THAT(error(), HasSubstr("examples/cifar10/from_python.py")) << name;
    fs::remove_all(folder() / fs::path(name).begin()->string());
  }
  write("archive", "pickle");
  EXPECT_THAT(message_of([&] { open_data(folder() / "archive"); }), HasSubstr("from_python.py"));
}

}  // namespace
}  // namespace vision
