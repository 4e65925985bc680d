#include "examples/vision/data/image_folder.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "examples/vision/data/decoder.h"
#include "examples/vision/data/open_data.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::fixture;
using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ImageFolders : public testing::Test {
 protected:
  // A copy of a fixture.
  void put(const std::string& image, const fs::path& place) const {
    fs::create_directories((folder() / place).parent_path());
    fs::copy_file(fixture("images/" + image), folder() / place);
  }
  void put_everywhere(const std::string& image, const fs::path& place) const {
    put(image, "train" / place);
    put(image, "val" / place);
  }
  std::string error() const {
    return message_of([&] { open_data(folder()); });
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(ImageFolders, ClassesAndImagesInTheOrderOfTheirNames) {
  put_everywhere("grey.jpg", "b class/2.jpg");
  put_everywhere("rgb.png", "b class/10.PNG");
  put_everywhere("cmyk.jpg", "Ära/bänder 1.JPEG");
  put_everywhere("rgb_420.jpg", "A/z.jpg");
  put_everywhere("rgb_444.jpg", "A/deeper/a.jpeg");
  put("grey.png", "train/A/one more.png");
  std::ofstream(folder() / "train/A/notes.txt") << "no image";
  std::ofstream(folder() / "train/README") << "no class";
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "image-folder");
  EXPECT_EQ(data.training->title(), "the images in " + folder().string());
  EXPECT_THAT(data.training->classes(), ElementsAre("A", "b class", "Ära"));
  ASSERT_EQ(data.training->size(), 6U);
  ASSERT_EQ(data.validation->size(), 5U);
  const std::vector<std::string> names{"A/one more.png", "A/z.jpg",       "A/deeper/a.jpeg",
                                       "b class/10.PNG", "b class/2.jpg", "Ära/bänder 1.JPEG"};
  const std::vector<int> labels{0, 0, 0, 1, 1, 2};
  std::vector<std::uint8_t> memory;
  Decoder decoder;
  Image image;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(data.training->where(i), (folder() / "train" / names[i]).string());
    EXPECT_EQ(data.training->label(i), labels[i]);
    const EncodedImage encoded = data.training->encoded(i, memory);
    EXPECT_EQ(decoder.open(encoded, data.training->where(i)), (ImageSize{29, 21}));
    decoder.decode(1, image);
  }
}

TEST_F(ImageFolders, OrderIsThatOfTorchvision) {
  // By folder, then by the bytes of the name: capitals come first.
  put_everywhere("grey.jpg", "c/B.jpg");
  put_everywhere("grey.jpg", "c/a.jpg");
  put_everywhere("grey.jpg", "c/a/x.jpg");
  const ImageListing listing = list_images(folder() / "train");
  EXPECT_EQ(listing.names, "B.jpga.jpga/x.jpg");
  EXPECT_THAT(listing.starts, ElementsAre(0, 5, 10, 17));
  EXPECT_THAT(count_images(listing), ElementsAre(3));
}

TEST_F(ImageFolders, TheFirstBytesSayWhatAFileIs) {
  put_everywhere("rgb.png", "n01440764/ILSVRC2012_val_00000001.JPEG");
  put_everywhere("grey.jpg", "n01440764/ILSVRC2012_val_00000002.JPEG");
  const DataSets data = open_data(folder());
  std::vector<std::uint8_t> memory;
  EXPECT_EQ(data.training->encoded(0, memory).format, ImageFormat::png);
  EXPECT_EQ(data.training->encoded(1, memory).format, ImageFormat::jpeg);
  EXPECT_EQ(data.training->title(), "the images in " + folder().string());
  EXPECT_EQ(data.id(), "image-folder");
}

TEST_F(ImageFolders, NamesAClassWithoutImages) {
  put_everywhere("grey.jpg", "a/1.jpg");
  fs::create_directory(folder() / "train" / "leer & über");
  EXPECT_THAT(error(), AllOf(HasSubstr((folder() / "train" / "leer & über").string()),
                             HasSubstr("holds no image"), HasSubstr(".png")));
}

TEST_F(ImageFolders, CountsImagesNamesThatAreNoFiles) {
  put_everywhere("grey.jpg", "a/1.jpg");
  const fs::path train = folder() / "train";
  fs::create_symlink("nowhere", train / "a/2.jpg");
  fs::create_symlink("3.jpg", train / "a/3.jpg");
  fs::create_symlink("/dev/zero", train / "a/4.png");
  fs::create_directory(train / "a/5.jpeg");
  ASSERT_EQ(mkfifo((train / "a/6.jpg").c_str(), 0600), 0);
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.training->size(), 1U);
  EXPECT_THAT(data.notes, ElementsAre(AllOf(HasSubstr("left out: 5 "),
                                            HasSubstr("the first " + (train / "a").string()))));
  fs::remove(train / "a/1.jpg");
  EXPECT_THAT(error(), AllOf(HasSubstr("holds no image"), HasSubstr("left out: 5 ")));
}

TEST_F(ImageFolders, NamesAClassThatIsALinkToNowhere) {
  for (const char* set : {"train", "val"}) {
    put("grey.jpg", fs::path(set) / "a/1.jpg");
    fs::create_symlink("nowhere", folder() / set / "b");
  }
  EXPECT_THAT(error(), HasSubstr((folder() / "train/b").string() + " is a link to nowhere"));
}

TEST_F(ImageFolders, NamesWhatIsMissing) {
  fs::create_directory(folder() / "train");
  EXPECT_THAT(error(),
              AllOf(HasSubstr((folder() / "train").string()), HasSubstr("holds no folder")));
  put("grey.jpg", "train/a/1.jpg");
  EXPECT_THAT(error(), AllOf(HasSubstr((folder() / "val").string()), HasSubstr("does not exist")));
  put("grey.jpg", "val/b/1.jpg");
  EXPECT_THAT(error(), AllOf(HasSubstr(folder().string()),
                             HasSubstr("class a is in train, but not in val"), HasSubstr("2 are")));
  put("grey.jpg", "train/b/1.jpg");
  EXPECT_THAT(error(), HasSubstr("class a is in train, but not in val"));
  put("grey.jpg", "val/a/1.jpg");
  put("grey.jpg", "val/c/1.jpg");
  EXPECT_THAT(error(), HasSubstr("class c is in val, but not in train"));
  fs::remove_all(folder() / "val");
  std::ofstream(folder() / "val") << "x";
  EXPECT_THAT(error(), HasSubstr("is not a folder"));
}

TEST_F(ImageFolders, AFileThatVanishesOrIsNoneIsABadImage) {
  put_everywhere("grey.jpg", "a/1.jpg");
  put_everywhere("grey.jpg", "a/2.jpg");
  const DataSets data = open_data(folder());
  const fs::path path = folder() / "train/a/2.jpg";
  std::vector<std::uint8_t> memory;
  const auto read = [&] { data.training->encoded(1, memory); };
  fs::remove(path);
  EXPECT_THROW(read(), BadImage);
  EXPECT_THAT(message_of(read),
              AllOf(StartsWith(path.string() + ": cannot be opened"), HasSubstr("No such file")));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(message_of(read), AllOf(StartsWith(path.string()), HasSubstr("not a regular file")));
  fs::remove(path);
  std::ofstream(path) << "";
  read();
  Decoder decoder;
  EXPECT_THAT(message_of([&] {
                decoder.open({ImageFormat::jpeg, memory, {}}, path.string());
              }),
              StartsWith(path.string() + ": "));
  fs::resize_file(path, (std::uint64_t{256} << 20U) + 1);  // sparse
  EXPECT_THAT(message_of(read), AllOf(StartsWith(path.string()), HasSubstr("too long")));
}

}  // namespace
}  // namespace vision
