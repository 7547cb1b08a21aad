#include "fabric/libfabric/survey.h"

#include <unistd.h>  // environ

#include <memory>
#include <vector>

#include "base/json.h"
#include "base/settings.h"
#include "fabric/host/dynamic_library.h"
#include "fabric/libfabric/library.h"
#include "fabric/libfabric/providers.h"

namespace rdma_transport::fabric::libfabric {
namespace {

std::string Describe(const Offer& offer) {
  return Json('{')
      .Text("provider", offer.provider)
      .Text("full_name", offer.full_name)
      .Text("interface", offer.interface)
      .Text("address", offer.address)
      .Flag("card", offer.card)
      .Flag("chosen", offer.chosen)
      .Text("reason", offer.reason)
      .End();
}

}  // namespace

std::string SurveyJson() {
  Settings settings;
  std::vector<std::string> warnings;
  std::shared_ptr<const Library> library;
  std::vector<Provider> providers;
  std::vector<Offer> offers;
  Status status = LoadSettings(environ, &settings, &warnings);
  if (status.ok()) status = LoadLibrary(settings.libfabric.library, &library);
  Json known('{');
  known.Text("name", settings.libfabric.library).Text("error", status.message());
  if (library != nullptr) {
    known.Text("file", host::FileOf(reinterpret_cast<void*>(library->getinfo), library->path))
        .Text("version", library->Version());
    status = FindProviders(*library, settings, &providers, &offers);
  }
  Json described('[');
  for (const Offer& offer : offers) described.Add(Describe(offer));
  return Json('{')
      .Field("library", known.End())
      .Field("offers", described.End())
      .Text("error", status.message())
      .End();
}

}  // namespace rdma_transport::fabric::libfabric
