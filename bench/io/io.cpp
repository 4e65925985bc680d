/// Images of a folder of classes into batches: how many a second, and what each core does.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "examples/vision/data/decoder.h"
#include "examples/vision/data/image_folder.h"
#include "examples/vision/data/loader.h"
#include "examples/vision/data/transform.h"

namespace {

struct Options {
  std::string folder;
  std::size_t batch = 64;
  int workers = static_cast<int>(std::thread::hardware_concurrency());
  std::size_t images = 0;
};

const vision::TransformOptions training{.geometry = vision::RandomResizedCrop{.size = 224},
                                        .flip = true,
                                        .normalisation = vision::imagenet_normalisation};
const vision::TransformOptions validation{.geometry = vision::CentreCrop{256, 224},
                                          .normalisation = vision::imagenet_normalisation};

double cpu_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The images that are taken, and the numbers shown of a pass over them.
class Images {
 public:
  explicit Images(const Options& options) : set_(title, vision::list_images(options.folder)) {
    const std::size_t wanted = options.images == 0 ? set_.size() : options.images;
    order_.resize(std::min(wanted, set_.size()));
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::vector<std::uint8_t> memory;
    for (const std::size_t index : order_) {
      bytes_ += set_.encoded(index, memory).bytes.size();
    }
  }

  const vision::Dataset& set() const { return set_; }
  const std::vector<std::size_t>& order() const { return order_; }

  /// Times `pass`, which goes through all images. `cold`: their files are out of the page cache
  /// before each pass, as far as the kernel does as it is told.
  void measure(benchmark::State& state, bool cold, const std::function<void()>& pass) const {
    double cpu = 0;
    for (auto _ : state) {
      if (cold) {
        state.PauseTiming();
        forget_files();
        state.ResumeTiming();
      }
      const double before = cpu_seconds();
      pass();
      cpu += cpu_seconds() - before;
    }
    const auto images =
        static_cast<double>(order_.size()) * static_cast<double>(state.iterations());
    const double megabytes =
        1e-6 * static_cast<double>(bytes_) * static_cast<double>(state.iterations());
    state.counters["images/s"] = benchmark::Counter(images, benchmark::Counter::kIsRate);
    state.counters["MB/s"] = benchmark::Counter(megabytes, benchmark::Counter::kIsRate);
    state.counters["images/core_s"] = images / cpu;
  }

 private:
  static constexpr const char* title = "the images of the benchmark";

  void forget_files() const {
    for (const std::size_t index : order_) {
      const int file = open(set_.where(index).c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0) {
        throw std::runtime_error(set_.where(index) + ": cannot be taken out of the page cache");
      }
      close(file);
    }
  }

  vision::ImageFolder set_;
  std::vector<std::size_t> order_;
  std::size_t bytes_ = 0;
};

void read(benchmark::State& state, const Images& images, bool cold) {
  std::vector<std::uint8_t> memory;
  images.measure(state, cold, [&] {
    for (const std::size_t index : images.order()) {
      benchmark::DoNotOptimize(images.set().encoded(index, memory).bytes.data());
    }
  });
}

void decode(benchmark::State& state, const Images& images) {
  std::vector<std::uint8_t> memory;
  vision::Decoder decoder;
  vision::Image image;
  images.measure(state, false, [&] {
    for (const std::size_t index : images.order()) {
      decoder.open(images.set().encoded(index, memory), images.set().where(index));
      decoder.decode(1, image);
      benchmark::DoNotOptimize(image.pixels.data());
    }
  });
}

void decode_and_transform(benchmark::State& state, const Images& images,
                          const vision::TransformOptions& options) {
  std::vector<std::uint8_t> memory;
  vision::Transform transform(options);
  std::vector<float> out(transform.output_floats());
  images.measure(state, false, [&] {
    for (const std::size_t index : images.order()) {
      transform.apply(images.set().encoded(index, memory), images.set().where(index),
                      vision::Random{1, index}, out.data());
      benchmark::DoNotOptimize(out.data());
    }
  });
}

// FNV-1a over the floats' bits of all batches of an epoch.
std::uint64_t checksum(vision::Loader& loader, const Images& images) {
  loader.start(0, images.order());
  std::uint64_t sum = 0xcbf29ce484222325U;
  while (const vision::Batch batch = loader.next()) {
    for (const float value : batch->images()) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      sum = (sum ^ bits) * 0x100000001b3U;
    }
  }
  return sum;
}

void load(benchmark::State& state, const Images& images, const Options& options, int workers,
          bool cold, bool& wrong) {
  vision::LoaderOptions loader_options{.batch = options.batch, .workers = workers};
  vision::Loader loader(images.set(), training, loader_options);
  loader_options.workers = 0;
  vision::Loader expected(images.set(), training, loader_options);
  if (checksum(loader, images) != checksum(expected, images)) {
    wrong = true;
    state.SkipWithError("batches differ from those without workers");
    return;
  }
  std::uint64_t epoch = 0;
  images.measure(state, cold, [&] {
    loader.start(++epoch, images.order());
    while (const vision::Batch batch = loader.next()) {
      benchmark::DoNotOptimize(batch->images().data());
    }
  });
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
}

int run(const Options& options) {
  const Images images(options);
  bool wrong = false;
  for (const bool cold : {false, true}) {
    add(cold ? "read/disk" : "read/cache",
        [&images, cold](benchmark::State& state) { read(state, images, cold); });
  }
  add("decode", [&](benchmark::State& state) { decode(state, images); });
  add("training_transforms",
      [&](benchmark::State& state) { decode_and_transform(state, images, training); });
  add("validation_transforms",
      [&](benchmark::State& state) { decode_and_transform(state, images, validation); });
  for (int workers = 1; workers <= options.workers; ++workers) {
    add("loader/workers:" + std::to_string(workers), [&, workers](benchmark::State& state) {
      load(state, images, options, workers, false, wrong);
    });
  }
  add("loader/disk/workers:" + std::to_string(options.workers),
      [&](benchmark::State& state) { load(state, images, options, options.workers, true, wrong); });
  benchmark::RunSpecifiedBenchmarks();
  return wrong ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Reads, decodes and transforms the images of a folder of classes.", "io");
  app.option_defaults()->always_capture_default();
  app.add_option("folder", options.folder, "folder of classes with JPEG and PNG files")->required();
  app.add_option("--batch", options.batch, "images of a batch")->check(CLI::Range(1, 65536));
  app.add_option("--workers", options.workers, "the loader runs with 1 up to this many threads")
      ->check(CLI::Range(1, 1024));
  app.add_option("--images", options.images, "only the first N images; 0: all");
  benchmark::Initialize(&argc, argv);
  try {
    app.parse(argc, argv);
    return run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "io: " << error.what() << std::endl;
    return 1;
  }
}
