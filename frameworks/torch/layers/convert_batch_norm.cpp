#include <hora/torch/sync_batch_norm.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace hora {
namespace {

class Converter {
 public:
  Converter(const Context& context, ProcessSet process_set)
      : context_(context), process_set_(process_set) {}

  /// The paths of BatchNorms outside of any Sequential, one after the other.
  static std::string strays(const torch::nn::Module& module, const std::string& path) {
    std::string found;
    for (const auto& child : module.named_children()) {
      const std::string here = path.empty() ? child.key() : path + "." + child.key();
      if (!is_batch_norm(*child.value())) {
        found += strays(*child.value(), here);
      } else if (!module.as<torch::nn::SequentialImpl>()) {
        found += " '" + here + "'";
      }
    }
    return found;
  }

  static bool is_batch_norm(const torch::nn::Module& module) {
    return module.as<torch::nn::BatchNorm1dImpl>() || module.as<torch::nn::BatchNorm2dImpl>() ||
           module.as<torch::nn::BatchNorm3dImpl>();
  }

  void convert(torch::nn::Module& module) {
    for (const auto& child : module.named_children()) convert(*child.value());
    auto* const sequential = module.as<torch::nn::SequentialImpl>();
    if (!sequential) return;
    const auto names = sequential->named_children().keys();
    for (std::size_t i = 0; i < sequential->size(); ++i) {
      torch::nn::AnyModule& place = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_batch_norm(*place.ptr())) continue;
      const SyncBatchNorm made = converted(place.ptr());
      sequential->replace_module(names[i], made);
      place = torch::nn::AnyModule(made);
      ++count_;
    }
  }

  std::size_t count() const { return count_; }

 private:
  /// One module in several places stays one.
  SyncBatchNorm converted(const std::shared_ptr<torch::nn::Module>& old) {
    const auto known = converted_.find(old);
    if (known != converted_.end()) return known->second;
    SyncBatchNorm made{nullptr};
    take<torch::nn::BatchNorm1dImpl>(*old, made);
    take<torch::nn::BatchNorm2dImpl>(*old, made);
    take<torch::nn::BatchNorm3dImpl>(*old, made);
    return converted_.emplace(old, made).first->second;
  }

  template <class BatchNormImpl>
  void take(const torch::nn::Module& module, SyncBatchNorm& made) {
    const auto* const old = module.as<BatchNormImpl>();
    if (!old) return;
    made = SyncBatchNorm(context_, old->options, process_set_);
    made->take_over(*old);
  }

  const Context& context_;
  ProcessSet process_set_;
  std::unordered_map<std::shared_ptr<torch::nn::Module>, SyncBatchNorm> converted_;
  std::size_t count_ = 0;
};

}  // namespace

std::size_t convert_batch_norm(const Context& context, torch::nn::Module& module,
                               ProcessSet process_set) {
  const std::string strays =
      Converter::is_batch_norm(module) ? " the module itself" : Converter::strays(module, "");
  if (!strays.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "hora::convert_batch_norm: these are not held by a torch::nn::Sequential:" +
                    strays + "; declare them as hora::SyncBatchNorm");
  }
  Converter converter(context, process_set);
  converter.convert(module);
  return converter.count();
}

}  // namespace hora
