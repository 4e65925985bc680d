#include "examples/vision/data/data_sets.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace vision {
namespace {

/// The first images of another set.
class FirstImages final : public Dataset {
 public:
  FirstImages(std::unique_ptr<const Dataset> all, std::size_t size)
      : Dataset(all->title(), all->classes()), all_(std::move(all)), size_(size) {}

  std::size_t size() const override { return size_; }
  int label(std::size_t index) const override { return all_->label(index); }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override {
    return all_->encoded(index, memory);
  }
  std::string where(std::size_t index) const override { return all_->where(index); }

 private:
  std::unique_ptr<const Dataset> all_;
  std::size_t size_;
};

}  // namespace

std::string DataSets::id() const {
  const auto name = [this] {
    switch (kind) {
      case DataKind::cifar10:
        return "cifar10";
      case DataKind::cifar100:
        return "cifar100";
      case DataKind::digits:
        return "digits";
      case DataKind::stl10:
        return "stl10";
      case DataKind::image_folder:
        break;
    }
    return "image-folder";
  };
  return std::string(name()) + (is_subset ? "-subset" : "");
}

std::string subset_title(const std::string& title, bool is_subset) {
  return (is_subset ? "a subset of " : "") + title;
}

void keep_first(DataSets& data, std::size_t limit) {
  for (auto* set : {&data.training, &data.validation}) {
    if (limit != 0 && limit < (*set)->size()) {
      *set = std::make_unique<FirstImages>(std::move(*set), limit);
    }
  }
}

}  // namespace vision
