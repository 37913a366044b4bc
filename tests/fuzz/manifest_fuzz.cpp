// Any text as a checkpoint's manifest, with a checksum that is right.
#include "lockstep/checkpoint/folder/manifest.h"

#include "lockstep/checkpoint/content_checksum.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::internal;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& whole : {text, "{\"checksum\": \"" + content_checksum(text) + "\",\n" + text}) {
    try {
      const Manifest manifest = decode_manifest(whole, "the manifest");
      for (const RecordedFile& one : manifest.files) {
        fuzz::check(one.name.find('/') == std::string::npos, "a file is in the checkpoint's folder");
      }
      for (const RecordedTensor& one : manifest.tensors)
        fuzz::check(one.file < manifest.files.size(), "a file is listed");
      const std::string again = encode_manifest(manifest);
      fuzz::check(encode_manifest(decode_manifest(again, "the manifest")) == again, "a manifest is what was written");
    } catch (const DataError& error) {
      fuzz::check_message(error);
    }
  }
  return 0;
}
