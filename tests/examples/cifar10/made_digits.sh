# shellcheck shell=bash
# Sourced by the tests of the CIFAR-10 program: data that is learned in seconds.

fail() {
  echo "FAILED: $*"
  if [[ -e output ]]; then cat output; fi
  exit 1
}

# made_digits INK NOISE: 1,797 digits in scikit-learn's CSV, bars of ink at a height that is the label, and
# noise below NOISE on every pixel.
made_digits() {
  awk -v ink="$1" -v noise="$2" 'BEGIN {
    srand(1)
    for (image = 0; image < 1797; ++image) {
      label = image % 10
      for (pixel = 0; pixel < 64; ++pixel) {
        row = int(pixel / 8)
        bar = row == label % 8 ? ink : (label > 7 && row > 5 ? 2 * ink / 3 : 0)
        printf "%d,", bar + int(rand() * noise)
      }
      printf "%d\n", label
    }
  }'
}
