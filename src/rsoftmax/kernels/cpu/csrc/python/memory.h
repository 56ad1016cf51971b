// Working memory of one thread, cut into pieces that begin on cache lines.
#pragma once

#include <cstdlib>

namespace rsoftmax {
namespace {

// Pieces are taken twice, by the same code: first to measure, when every piece is null, then, after `reserve`, in
// memory.
struct Memory {
    Memory() = default;
    Memory(const Memory&) = delete;
    ~Memory() { free(data); }

    template <class T> T* take(long count) {
        size_t offset = used;
        used += (count * sizeof(T) + line - 1) / line * line;
        return is_measuring ? nullptr : (T*)(data + offset);
    }

    // Allocates what take_pieces takes, and begins again; false if there is no memory.
    template <class F> bool reserve(F take_pieces) {
        used = 0;
        is_measuring = true;
        take_pieces();
        is_measuring = false;
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
    bool is_measuring = false;
};

}  // namespace
}  // namespace rsoftmax
