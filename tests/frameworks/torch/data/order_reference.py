#!/usr/bin/env python3
"""Prints orders of epochs, computed after the comment of <hora/torch/distributed_sampler.h> alone.

std::seed_seq ([rand.util.seedseq]) and std::mt19937_64 ([rand.eng.mers]) are written down from the
C++ standard. distributed_sampler_test.cpp holds what this prints:

    tests/frameworks/torch/data/order_reference.py
"""

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def seed_seq(words, n):
    """seed_seq::generate(): `n` words of 32 bits."""
    out = [0x8B8B8B8B] * n
    s = len(words)
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    m = max(s + 1, n)

    def mix(x):
        return x ^ (x >> 27)

    for k in range(m):
        r = 1664525 * mix(out[k % n] ^ out[(k + p) % n] ^ out[(k - 1) % n]) & MASK32
        out[(k + p) % n] = (out[(k + p) % n] + r) & MASK32
        r += s if k == 0 else k % n + (words[k - 1] if k <= s else 0)
        out[(k + q) % n] = (out[(k + q) % n] + r) & MASK32
        out[k % n] = r & MASK32
    for k in range(m, m + n):
        r = 1566083941 * mix((out[k % n] + out[(k + p) % n] + out[(k - 1) % n]) & MASK32) & MASK32
        out[(k + p) % n] ^= r
        r = (r - k % n) & MASK32
        out[(k + q) % n] ^= r
        out[k % n] = r
    return out


class Mt19937_64:
    N, M, R = 312, 156, 31

    def __init__(self, words):
        seeds = seed_seq(words, 2 * self.N)
        self.state = [seeds[2 * i] | seeds[2 * i + 1] << 32 for i in range(self.N)]
        low = (1 << self.R) - 1
        if not any(self.state[1:]) and not self.state[0] & ~low:
            self.state[0] = 1 << 63
        self.index = self.N

    def __call__(self):
        if self.index == self.N:
            low = (1 << self.R) - 1
            for i in range(self.N):
                y = self.state[i] & ~low & MASK64 | self.state[(i + 1) % self.N] & low
                self.state[i] = self.state[(i + self.M) % self.N] ^ y >> 1
                if y & 1:
                    self.state[i] ^= 0xB5026F5AA96619E9
            self.index = 0
        z = self.state[self.index]
        self.index += 1
        z ^= z >> 29 & 0x5555555555555555
        z ^= z << 17 & 0x71D67FFFEDA60000
        z ^= z << 37 & 0xFFF7EEE000000000
        return z ^ z >> 43


def order(samples, seed, epoch):
    random = Mt19937_64([seed & MASK32, seed >> 32, epoch & MASK32, epoch >> 32])
    places = list(range(samples))
    for n in range(samples, 1, -1):
        x = random()
        while x < (1 << 64) % n:
            x = random()
        places[n - 1], places[x % n] = places[x % n], places[n - 1]
    return places


if __name__ == "__main__":
    print("12 samples, seed 1, epoch 0:", order(12, 1, 0))
    print("12 samples, seed 2^40 + 7, epoch 2^33 + 3:", order(12, (1 << 40) + 7, (1 << 33) + 3))
    print("1281167 samples, seed 42, epoch 89, first 8:", order(1281167, 42, 89)[:8])
