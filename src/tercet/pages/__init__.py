"""How figures and pages look: one HTML file with everything in it, no network, phone to desktop, dark and light."""
