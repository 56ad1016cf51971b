// Working memory of one thread, cut into pieces that begin on cache lines.
#pragma once

#include <cstdlib>

namespace rsoftmax {
namespace {

struct Memory {
    Memory() = default;
    Memory(const Memory&) = delete;
    ~Memory() { free(data); }

    template <class T> T* take(long count) {
        T* piece = (T*)(data + used);
        used += (count * sizeof(T) + line - 1) / line * line;
        return piece;
    }

    // Makes room for all that take_pieces takes, and begins again; false if there is no memory.
    template <class F> bool reserve(F take_pieces) {
        used = 0;
        take_pieces();
        if (used > size) {
            free(data);
            data = (char*)aligned_alloc(line, used);
            size = data ? used : 0;
        }
        used = 0;
        return data;
    }

private:
    static constexpr size_t line = 64;
    char* data = nullptr;
    size_t size = 0, used = 0;
};

}  // namespace
}  // namespace rsoftmax
