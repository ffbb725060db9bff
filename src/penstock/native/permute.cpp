// The keyed permutation behind the orders of `base/_random.py`. `permute_now` in `_numpy.py` is its definition.
#include "core.hpp"

#include <algorithm>

namespace penstock {
namespace {

constexpr uint64_t ODD = 0xD6E8FEB86659FD93;
// Values that go through a round together, so that the processor overlaps their multiplications.
constexpr int64_t GROUP = 16;

void permute_group(uint64_t *values, int64_t count, const Permutation &key, const uint64_t *tweaks, bool is_one) {
    uint64_t left[GROUP], right[GROUP], tweak[GROUP];
    for (int64_t i = 0; i < count; i++) {
        left[i] = values[i] / key.b;
        right[i] = values[i] - left[i] * key.b;
        tweak[i] = tweaks[is_one ? 0 : i];
    }
    uint64_t *from = right, *to = left;
    for (size_t round = 0; round < key.rounds; round++) {
        const uint64_t factor = key.words[2 * round], addend = key.words[2 * round + 1];
        const uint64_t modulus = round % 2 == 0 ? key.a : key.b;
        for (int64_t i = 0; i < count; i++) {
            uint64_t hash = from[i] * factor + (tweak[i] * factor + addend);
            hash = ((hash ^ hash >> 32) * ODD >> 32) * modulus >> 32;
            uint64_t sum = to[i] + hash;
            to[i] = sum >= modulus ? sum - modulus : sum;
        }
        std::swap(from, to);
    }
    for (int64_t i = 0; i < count; i++) {
        values[i] = left[i] * key.b + right[i];
    }
}

} // namespace

void permute(uint64_t *values, int64_t count, const Permutation &key, const uint64_t *tweaks, bool is_one) {
    for (int64_t begin = 0; begin < count; begin += GROUP) {
        int64_t size = std::min(GROUP, count - begin);
        const uint64_t *tweak = tweaks + (is_one ? 0 : begin);
        permute_group(values + begin, size, key, tweak, is_one);
        for (int64_t i = begin; i < begin + size; i++) { // the walk of those that left the range
            while (values[i] >= key.n) {
                permute_group(values + i, 1, key, tweaks + (is_one ? 0 : i), is_one);
            }
        }
    }
}

} // namespace penstock
