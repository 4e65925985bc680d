#include "frameworks/torch/optimizer/lent_gradients.h"

#include "frameworks/torch/optimizer/parameter_form.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

// AccumulateGrad makes `.grad` a detached view of what it gets, where nothing else uses that; the
// engine holds it for the hooks behind. It may be a view itself, which alone holds its base then.
bool has_other_user(const at::Tensor& gradient, const at::Tensor& delivered) {
  std::size_t users = 1;
  if (delivered.defined() && delivered.layout() == at::kStrided &&
      delivered.storage().is_alias_of(gradient.storage()) && !delivered.is_same(gradient)) {
    if (delivered.use_count() > 1) return true;
    users += 1;
    if (delivered.is_view()) {
      if (delivered._base().use_count() > 1) return true;
      users += 1;
    }
  }
  return gradient.use_count() > 1 ||
         static_cast<std::size_t>(gradient.storage().use_count()) > users;
}

}  // namespace

GradientFacts facts_of_memory(const at::Tensor& gradient, const at::Tensor& place,
                              const at::Tensor& delivered) {
  GradientFacts facts;
  facts.in_order = gradient.scalar_type() == place.scalar_type() && gradient.is_cpu() &&
                   gradient.is_non_overlapping_and_dense() && same_memory_order(gradient, place);
  if (!facts.in_order || gradient.numel() == 0) return facts;
  const auto* const data = static_cast<const std::byte*>(gradient.data_ptr());
  facts.in_arena = in_tensor_arena(data) && in_tensor_arena(data + gradient.nbytes() - 1);
  facts.shared = gradient.requires_grad() || has_other_user(gradient, delivered);
  return facts;
}

std::size_t LentGradients::bytes() const {
  std::size_t sum = 0;
  for (const Lent& lent : lent_) sum += lent.gradient.defined() ? lent.gradient.nbytes() : 0;
  return sum;
}

void LentGradients::give_back_all() {
  for (Lent& lent : lent_) lent = {};
}

void LentGradients::give_up() noexcept {
  for (const Lent& lent : lent_) {
    if (lent.memory) never_free(lent.memory);
  }
}

}  // namespace hora::internal
