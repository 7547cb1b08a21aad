// The published vectors, and the host's libcrypto as a second opinion where there is one.
#include "base/hmac_sha256.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/random.h"

namespace rdma_transport {
namespace {

std::string Bytes(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// FIPS 180-4's examples (NIST, "SHA256.pdf"), and the empty message of its test vectors.
TEST(Sha256Test, Fips180Examples) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                       "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(Hex(Sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(HmacSha256Test, Rfc4231) {
  struct Case {
    std::string key, data;
    const char* mac;
  };
  const Case cases[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {Bytes("0102030405060708090a0b0c0d0e0f10111213141516171819"), std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Case& each : cases) EXPECT_EQ(Hex(HmacSha256(each.key, each.data)), each.mac);
  // Case 5 is of a truncated output.
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0c'), "Test With Truncation").substr(0, 16)),
            "a3b6167473100ee06e0c796c2955552b");
}

TEST(HmacSha256Test, AgreesWithTheHostsLibrary) {
  void* library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  using Digest = const void* (*)();
  using Hmac = unsigned char* (*)(const void*, const void*, int, const unsigned char*, size_t,
                                  unsigned char*, unsigned*);
  const auto sha256 = reinterpret_cast<Digest>(dlsym(library, "EVP_sha256"));
  const auto hmac = reinterpret_cast<Hmac>(dlsym(library, "HMAC"));
  ASSERT_TRUE(sha256 != nullptr && hmac != nullptr);
  std::mt19937 random(7);
  for (size_t length = 0; length < 400; ++length) {
    std::string key(1 + random() % 150, '\0');
    std::string data(length, '\0');
    for (char& byte : key) byte = static_cast<char>(random());
    for (char& byte : data) byte = static_cast<char>(random());
    unsigned char mac[64];
    unsigned mac_length = 0;
    ASSERT_NE(
        hmac(sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(data.data()), data.size(), mac, &mac_length),
        nullptr);
    ASSERT_EQ(HmacSha256(key, data), std::string(reinterpret_cast<char*>(mac), mac_length));
  }
}

TEST(EqualInConstantTimeTest, ComparesEveryByte) {
  const std::string one = RandomBytes(kHmacBytes);
  EXPECT_TRUE(EqualInConstantTime(one, one));
  EXPECT_TRUE(EqualInConstantTime("", ""));
  EXPECT_FALSE(EqualInConstantTime(one, one.substr(1)));
  EXPECT_FALSE(EqualInConstantTime(one, ""));
  for (size_t i = 0; i < one.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = one;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_FALSE(EqualInConstantTime(one, other));
    }
  }
}

}  // namespace
}  // namespace rdma_transport
