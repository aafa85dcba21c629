// In a file of its own, so that a strict Content-Security-Policy lets it run.
const csrfToken = document.querySelector('meta[name="csrf-token"]').content;

window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  persistAuthorization: false,
  requestInterceptor(request) {
    if (csrfToken) request.headers["X-CSRFToken"] = csrfToken;
    return request;
  },
});
