package io.odradek.iceberg;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;

/**
 * Local files whose rename, by which Iceberg commits, replaces nothing and works for one driver only.
 *
 * <p>Iceberg looks whether the next version exists, and renames a file to it. On a volume a rename
 * replaces what another driver committed between the two. Here the new version goes through the
 * driver's staging folder, and gets its name as a link, which fails if there is one. A driver that
 * follows removes the folder first: then the link fails too, however long its predecessor was paused.
 * So does the version hint, by which readers find the newest version.
 */
public final class FencedFiles extends FilterFileSystem {
  private static final String HINT = "version-hint.text";
  private final Path staging;

  /** Wraps local files; `staging` is the folder of the driver. */
  public FencedFiles(FileSystem files, Path staging) {
    super(files);
    this.staging = staging;
  }

  @Override
  public boolean rename(org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to)
      throws IOException {
    Path source = local(from);
    Path target = local(to);
    Path staged = staging.resolve(from.getName());
    // The checksum that Hadoop wrote beside it.
    Files.deleteIfExists(source.resolveSibling("." + from.getName() + ".crc"));
    try (FileChannel written = FileChannel.open(source, StandardOpenOption.WRITE)) {
      written.force(true);
    }
    try {
      Files.move(source, staged, StandardCopyOption.ATOMIC_MOVE);
      if (to.getName().equals(HINT)) {
        Files.move(staged, target, StandardCopyOption.ATOMIC_MOVE);
      } else {
        Files.createLink(target, staged);
      }
      sync(target.getParent());
      return true;
    } catch (NoSuchFileException | FileAlreadyExistsException e) {
      return false;
    } finally {
      Files.deleteIfExists(staged);
    }
  }

  @Override
  public boolean delete(org.apache.hadoop.fs.Path path, boolean recursive) throws IOException {
    // The hint is replaced by a rename, never missing in between.
    return path.getName().equals(HINT) || super.delete(path, recursive);
  }

  private static void sync(Path folder) throws IOException {
    try (FileChannel opened = FileChannel.open(folder, StandardOpenOption.READ)) {
      opened.force(true);
    }
  }

  private static Path local(org.apache.hadoop.fs.Path path) {
    return Path.of(path.toUri().getPath());
  }
}
