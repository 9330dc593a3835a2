// Status codes and their thread-local message; the one place where C++ errors become C ones.
#pragma once

#include "llama-kv-page.h"

#include <cstdarg>
#include <exception>
#include <new>
#include <string>

// thrown inside the library, never across the C interface
class page_error : public std::exception {
  public:
    page_error(llama_kv_page_status status, std::string message) : status(status), message(std::move(message)) {}

    const char * what() const noexcept override { return message.c_str(); }

    llama_kv_page_status status;
    std::string          message;
};

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
[[noreturn]] void page_fail(llama_kv_page_status status, const char * format, ...);

// keep the message for llama_kv_page_last_message() and return the status
int32_t page_set_error(llama_kv_page_status status, const char * message) noexcept;

// run `body` and turn whatever it throws into a status
template <typename Body> int32_t page_guard(Body && body) noexcept {
    try {
        body();
        return LLAMA_KV_PAGE_OK;
    } catch (const page_error & err) {
        return page_set_error(err.status, err.what());
    } catch (const std::bad_alloc &) {
        return page_set_error(LLAMA_KV_PAGE_ERR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception & err) {
        return page_set_error(LLAMA_KV_PAGE_ERR_INTERNAL, err.what());
    } catch (...) {
        return page_set_error(LLAMA_KV_PAGE_ERR_INTERNAL, "unknown C++ exception");
    }
}
