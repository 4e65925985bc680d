#include "examples/cifar10/augmentation.h"

#include "examples/vision/data/random.h"

namespace cifar10 {

Placement draw_placement(const DataSource& source, std::uint64_t seed, std::uint64_t epoch,
                         std::size_t image) {
  vision::Random random{seed, epoch, image};
  const auto places = static_cast<std::uint64_t>(2 * source.crop_padding + 1);
  Placement placement;
  placement.down = static_cast<int>(random.below(places)) - source.crop_padding;
  placement.right = static_cast<int>(random.below(places)) - source.crop_padding;
  placement.flip = source.flip && random.below(2) == 1;
  return placement;
}

void write_image(std::span<const std::uint8_t, image_bytes> pixels, const Placement& placement,
                 const Normalisation& normalisation, float* out) {
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const std::uint8_t* plane = pixels.data() + channel * plane_bytes;
    const float scale = 1.0F / (255.0F * normalisation.deviation[channel]);
    const float shift = -normalisation.mean[channel] / normalisation.deviation[channel];
    for (int row = 0; row < side; ++row) {
      const int from_row = row - placement.down;
      for (int column = 0; column < side; ++column) {
        // The flip comes after the crop.
        const int cropped = placement.flip ? side - 1 - column : column;
        const int from_column = cropped - placement.right;
        const bool inside =
            from_row >= 0 && from_row < side && from_column >= 0 && from_column < side;
        const int value = inside ? plane[from_row * side + from_column] : 0;
        *out++ = static_cast<float>(value) * scale + shift;
      }
    }
  }
}

}  // namespace cifar10
