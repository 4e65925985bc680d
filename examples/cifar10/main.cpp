/// Trains a network on CIFAR-10: horarun -np 4 cifar10 --data FOLDER
#include "examples/cifar10/data_source.h"
#include "examples/vision/train/program.h"

int main(int argc, char** argv) {
  return vision::run_program(
      {.name = "cifar10",
       .summary = "Trains a network on CIFAR-10 with hora, one process a rank, under horarun.",
       .data = "CIFAR-10 or CIFAR-100: the folder of the binary version; CIFAR-10's Python "
               "version, its archive as well; or the digits",
       .image_side = cifar10::side,
       .transforms = cifar10::transforms},
      argc, argv);
}
