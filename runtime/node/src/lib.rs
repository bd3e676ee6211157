//! The mesh runtime: settings, the Mesh facade, the HTTP API and the command line.
