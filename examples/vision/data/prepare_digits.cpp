/// Turns scikit-learn's digits.csv, read from standard input, into CIFAR-10's binary layout.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "examples/vision/command_line.h"
#include "examples/vision/data/digits.h"

int main(int argc, char** argv) {
  std::string folder;
  std::uint64_t split_seed = 1;
  CLI::App app("gzip -dc digits.csv.gz | prepare_digits --output FOLDER");
  app.add_option("--output", folder, "folder to make; must not exist")->required();
  app.add_option("--split-seed", split_seed,
                 "draws which fifth of the images is kept for validation")
      ->capture_default_str();
  try {
    vision::parse_words(app, argc, argv);
    const auto digits = vision::parse_digits(std::cin);
    vision::write_digits(digits, split_seed, folder);
    std::cout << "Wrote " << digits.size() << " handwritten digits to " << folder << '\n';
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::cerr << "prepare_digits: " << error.what() << '\n';
    return 1;
  }
}
